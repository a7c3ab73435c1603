package network

import (
	"encoding/json"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

// Described converts the plugins' results to the form of containerd's verbose status.
func TestDescribed(t *testing.T) {
	r := &Result{Attachments: []Attachment{
		{Network: "pods", Interface: "eth0", NetNS: "/run/netns/x", Result: json.RawMessage(`{"cniVersion":"1.0.0",
			"interfaces":[{"name":"cni0","mac":"aa"},{"name":"eth0","mac":"bb","sandbox":"/run/netns/x"}],
			"ips":[{"address":"10.1.0.5/24","gateway":"10.1.0.1","interface":1},{"address":"fd00::5/64","interface":1}],
			"routes":[{"dst":"0.0.0.0/0"}],"dns":{"nameservers":["10.1.0.2"]}}`)},
		{Network: "more", Interface: "eth1", NetNS: "/run/netns/x", Result: json.RawMessage(`{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.2.0.5/24"}],"dns":{}}`)},
		{Network: "cut off", Interface: "eth2"},
	}}
	d := test.Value(r.Described())(t)
	text := test.Value(json.Marshal(d))(t)
	const want = `{"Interfaces":{` +
		`"cni0":{"IPConfigs":null,"Mac":"aa","Sandbox":""},` +
		`"eth0":{"IPConfigs":[{"IP":"10.1.0.5","Gateway":"10.1.0.1"},{"IP":"fd00::5","Gateway":""}],"Mac":"bb","Sandbox":"/run/netns/x"},` +
		`"eth1":{"IPConfigs":[{"IP":"10.2.0.5","Gateway":""}],"Mac":"","Sandbox":"/run/netns/x"}},` +
		`"DNS":[{"nameservers":["10.1.0.2"]},{}],"Routes":[{"dst":"0.0.0.0/0"}]}`
	if string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
}
