package standard

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Masquerade gives packets of pods to other networks the node's address. It is one table of
// nftables, with a set of pods and a rule for each subnet. All methods may be called concurrently.
type Masquerade struct {
	name string

	mu   sync.Mutex // held while the table changes
	pods map[string][]netip.Prefix
	// ruled are the subnets with a rule. A rule stays when its last pod goes: the kernel needs some
	// 10 ms to replace the table.
	ruled  []netip.Prefix
	usable bool
	whole  uint32         // the generation in which the table was whole, or 0
	conn   *nftables.Conn // nil after an error
	socket *netlink.Conn  // of conn
}

// NewMasquerade returns the Masquerade with that table. No other daemon may use the name.
func NewMasquerade(table string) *Masquerade {
	return &Masquerade{name: table, pods: map[string][]netip.Prefix{}}
}

// Usable reports whether the kernel has what the table needs: Linux 5.2 with nftables.
func (m *Masquerade) Usable() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.usable && readsTables() {
		tried := NewMasquerade(m.name + "_probe")
		tried.ruled = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		m.usable = tried.transact(func(c *nftables.Conn) error {
			err := tried.build(c)
			c.DelTable(tried.table())
			return err
		}) == nil
		tried.close()
	}
	return m.usable
}

// Add adds the addresses of a pod, with the lengths of their subnets.
func (m *Masquerade) Add(owner string, addresses []netip.Prefix) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pods[owner] = addresses
	err := error(unix.ENOENT)
	if !slices.ContainsFunc(addresses, func(a netip.Prefix) bool { return !slices.Contains(m.ruled, a.Masked()) }) {
		err = m.change(addresses, (*nftables.Conn).SetAddElements)
	}
	return m.orReplace(err)
}

// Of returns the addresses of a pod.
func (m *Masquerade) Of(owner string) []netip.Prefix {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods[owner]
}

// Remove removes the addresses of a pod that no other pod has. Another pod can have one, for example
// after a reboot that emptied the files of host-local.
func (m *Masquerade) Remove(owner string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var err error
	addresses := slices.Clone(m.pods[owner])
	for other, theirs := range m.pods {
		if other != owner {
			addresses = slices.DeleteFunc(addresses, func(a netip.Prefix) bool { return slices.Contains(theirs, a) })
		}
	}
	if len(addresses) > 0 {
		err = m.change(addresses, (*nftables.Conn).SetDeleteElements)
		if err != nil && !errors.Is(err, unix.ENOENT) { // or some are gone
			return fmt.Errorf("masquerading: table inet %s: %w", m.name, err)
		}
	}
	delete(m.pods, owner)
	return m.orReplace(err)
}

// Restore makes the table that of these pods. Without pods it removes the table. A table that is
// whole stays.
func (m *Masquerade) Restore(pods map[string][]netip.Prefix) error {
	if len(pods) == 0 && !m.exists() {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.Copy(m.pods, pods)
	m.ruled = m.subnets()
	if len(m.pods) > 0 && m.isWhole() {
		return nil
	}
	return m.orReplace(unix.ENOENT)
}

// Repair replaces the table if another program changed it.
func (m *Masquerade) Repair() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := generation() // first, so that the next Repair finds what changes during isWhole
	if len(m.ruled) == 0 || now != 0 && now == m.whole || m.isWhole() {
		m.whole = now
		return nil
	}
	return m.orReplace(unix.ENOENT)
}

// generation returns the number that the kernel changes with each change of any table, or 0.
func generation() uint32 {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return 0
	}
	defer func() { _ = conn.Close() }()
	const header = 4 // of netfilter, before the attributes
	answers, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   make([]byte, header),
	})
	if err != nil || len(answers) != 1 {
		return 0
	}
	attributes, _ := netlink.UnmarshalAttributes(answers[0].Data[header:])
	i := slices.IndexFunc(attributes, func(a netlink.Attribute) bool { return a.Type == unix.NFTA_GEN_ID })
	if i < 0 {
		return 0
	}
	return binaryutil.BigEndian.Uint32(attributes[i].Data)
}

func (m *Masquerade) isWhole() bool {
	conn, err := nftables.New()
	if err != nil {
		return false
	}
	rules, err := conn.GetRules(m.table(), m.chain())
	if err != nil || len(rules) != len(m.ruled) {
		return false
	}
	for _, subnet := range m.ruled {
		elements, err := conn.GetSetElements(m.set(subnet))
		wanted := m.in(subnet)
		for _, e := range elements {
			a, _ := netip.AddrFromSlice(e.Key)
			delete(wanted, a)
		}
		if err != nil || len(wanted) > 0 || len(elements) != len(m.in(subnet)) {
			return false
		}
	}
	return true
}

// readsTables reports whether the kernel has nftables.
func readsTables() bool {
	conn, err := nftables.New()
	if err != nil {
		return false
	}
	_, err = conn.ListTablesOfFamily(nftables.TableFamilyINet)
	return err == nil
}

// exists is false, too, on a kernel without nftables.
func (m *Masquerade) exists() bool {
	conn, err := nftables.New()
	if err != nil {
		return false
	}
	_, err = conn.ListTableOfFamily(m.name, nftables.TableFamilyINet)
	return err == nil
}

func (m *Masquerade) table() *nftables.Table {
	return &nftables.Table{Name: m.name, Family: nftables.TableFamilyINet}
}

func (m *Masquerade) chain() *nftables.Chain {
	return &nftables.Chain{
		Name: "postrouting", Table: m.table(), Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	}
}

func (m *Masquerade) set(subnet netip.Prefix) *nftables.Set {
	kind := nftables.TypeIP6Addr
	if subnet.Addr().Is4() {
		kind = nftables.TypeIPAddr
	}
	return &nftables.Set{Table: m.table(), Name: setName(subnet), KeyType: kind}
}

// setName has only characters that nft reads in names.
func setName(subnet netip.Prefix) string {
	return "pods_" + strings.ReplaceAll(subnet.String(), ":", "_")
}

// in returns the different addresses of pods in a subnet.
func (m *Masquerade) in(subnet netip.Prefix) map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, addresses := range m.pods {
		for _, a := range addresses {
			if a.Masked() == subnet {
				all[a.Addr()] = true
			}
		}
	}
	return all
}

func (m *Masquerade) subnets() []netip.Prefix {
	seen := map[netip.Prefix]bool{}
	for _, addresses := range m.pods {
		for _, a := range addresses {
			seen[a.Masked()] = true
		}
	}
	return slices.SortedFunc(maps.Keys(seen), func(a, b netip.Prefix) int { return cmp.Compare(a.String(), b.String()) })
}

// transact sends the messages of f in one transaction. It keeps the socket: to close it takes some 10
// ms while the kernel frees what a transaction removed.
func (m *Masquerade) transact(f func(*nftables.Conn) error) (err error) {
	m.whole = 0
	if m.conn == nil {
		keep := nftables.WithSockOptions(func(c *netlink.Conn) error { m.socket = c; return nil })
		if m.conn, err = nftables.New(nftables.AsLasting(), keep); err != nil {
			return err
		}
	}
	if err = f(m.conn); err == nil {
		err = m.socket.SetReadDeadline(time.Now().Add(answerTimeout))
	}
	if err == nil {
		err = m.conn.Flush()
	}
	if err != nil { // answers may be unread
		m.close()
	}
	return err
}

// Close removes the table if no pod needs it. Call it after all other methods.
func (m *Masquerade) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.close()
	if len(m.pods) > 0 || len(m.ruled) == 0 {
		return nil
	}
	return m.orReplace(unix.ENOENT)
}

// answerTimeout limits the wait for an answer: after some errors the kernel sends fewer answers than
// package nftables expects.
const answerTimeout = 10 * time.Second

func (m *Masquerade) close() {
	if m.conn != nil {
		_ = m.conn.CloseLasting()
		m.conn = nil
	}
}

// change adds or removes elements of the sets.
func (m *Masquerade) change(addresses []netip.Prefix, f func(*nftables.Conn, *nftables.Set, []nftables.SetElement) error) error {
	return m.transact(func(conn *nftables.Conn) error {
		for _, a := range addresses {
			if err := f(conn, m.set(a.Masked()), []nftables.SetElement{{Key: a.Addr().AsSlice()}}); err != nil {
				return err
			}
		}
		return nil
	})
}

// orReplace replaces the whole table if err is ENOENT: a part of it is missing.
func (m *Masquerade) orReplace(err error) error {
	if errors.Is(err, unix.ENOENT) {
		err = m.transact(func(conn *nftables.Conn) error {
			conn.AddTable(m.table()) // to delete a missing table is an error
			conn.DelTable(m.table())
			m.ruled = m.subnets()
			if len(m.pods) == 0 {
				return nil
			}
			return m.build(conn)
		})
	}
	if err != nil {
		return fmt.Errorf("masquerading: table inet %s: %w", m.name, err)
	}
	return nil
}

func (m *Masquerade) build(conn *nftables.Conn) error {
	conn.AddTable(m.table())
	conn.AddChain(m.chain())
	for _, subnet := range m.ruled {
		var pods []nftables.SetElement
		for a := range m.in(subnet) {
			pods = append(pods, nftables.SetElement{Key: a.AsSlice()})
		}
		set := m.set(subnet)
		if err := conn.AddSet(set, pods); err != nil {
			return err
		}
		conn.AddRule(&nftables.Rule{Table: m.table(), Chain: m.chain(), Exprs: rule(set, subnet)})
	}
	return nil
}

// rule is: saddr @set daddr != subnet daddr != multicast masquerade.
func rule(set *nftables.Set, subnet netip.Prefix) []expr.Any {
	family, size, from, multicast := byte(unix.NFPROTO_IPV6), uint32(16), uint32(8), netip.MustParsePrefix("ff00::/8")
	if subnet.Addr().Is4() {
		family, size, from, multicast = unix.NFPROTO_IPV4, 4, 12, netip.MustParsePrefix("224.0.0.0/4")
	}
	all := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: from, Len: size},
		&expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID},
	}
	for _, outside := range []netip.Prefix{subnet, multicast} {
		all = append(all,
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: from + size, Len: size},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: net.CIDRMask(outside.Bits(), int(8*size)), Xor: make([]byte, size)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: outside.Addr().AsSlice()},
		)
	}
	return append(all, &expr.Masq{})
}
