package testbed

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
)

// Certificate names the PEM files of a server's certificate.
type Certificate struct {
	// Cert and Key are the server's, CA is the authority that signed it.
	Cert, Key, CA string
}

// NewCertificate writes a certificate for an address, of a new authority, to
// files in dir.
func NewCertificate(t T, dir string, address net.IP) Certificate {
	t.Helper()
	issued, authority, err := issue(address)
	Mustf(t, err, "make a certificate for %s", address)
	key, err := privateKeyPEM(issued)
	Mustf(t, err, "encode the key of the certificate for %s", address)
	leaf := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: issued.Certificate[0]})
	files := Certificate{
		Cert: filepath.Join(dir, "server.crt"), Key: filepath.Join(dir, "server.key"), CA: filepath.Join(dir, "ca.crt"),
	}
	for path, body := range map[string][]byte{files.Cert: leaf, files.Key: key, files.CA: authority} {
		Mustf(t, os.WriteFile(path, body, 0o600), "write a certificate")
	}
	return files
}

func privateKeyPEM(certificate tls.Certificate) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(certificate.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
