// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// certificateLife is how long certificates are valid.
const certificateLife = 365 * 24 * time.Hour

// authority issues certificates, and writes them to files in a directory.
type authority struct {
	dir    string
	server string // URL of the API server
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
}

// newAuthority creates ca.crt and ca.key. It also creates sa.key and sa.pub, the pair of keys for service account tokens.
func newAuthority(dir, server string) (*authority, error) {
	a := &authority{dir: dir, server: server}
	var err error
	if a.key, err = a.newKey("ca"); err != nil {
		return nil, err
	}
	a.cert = template(pkix.Name{CommonName: "metalplug-test-ca"})
	a.cert.IsCA, a.cert.BasicConstraintsValid, a.cert.KeyUsage = true, true, x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature
	if err := a.sign("ca", a.cert, &a.key.PublicKey); err != nil {
		return nil, err
	}
	tokens, err := a.newKey("sa")
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKIXPublicKey(&tokens.PublicKey)
	if err != nil {
		return nil, err
	}
	return a, a.write("sa.pub", "PUBLIC KEY", der)
}

func template(subject pkix.Name) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		panic(err) // crypto/rand never fails
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: subject, KeyUsage: x509.KeyUsageDigitalSignature,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(certificateLife),
	}
}

// serve issues a certificate for a server on the loopback address.
func (a *authority) serve(name string) error {
	cert := template(pkix.Name{CommonName: name})
	cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	cert.DNSNames, cert.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	return a.issue(name, cert)
}

// client issues a certificate for a user in groups, and writes NAME.kubeconfig.
func (a *authority) client(name, user string, groups ...string) error {
	cert := template(pkix.Name{CommonName: user, Organization: groups})
	cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if err := a.issue(name, cert); err != nil {
		return err
	}
	config := api.NewConfig()
	config.Clusters["metalplug"] = &api.Cluster{Server: a.server, CertificateAuthority: a.file("ca.crt")}
	config.AuthInfos[name] = &api.AuthInfo{ClientCertificate: a.file(name + ".crt"), ClientKey: a.file(name + ".key")}
	config.Contexts["metalplug"] = &api.Context{Cluster: "metalplug", AuthInfo: name}
	config.CurrentContext = "metalplug"
	return clientcmd.WriteToFile(*config, a.file(name+".kubeconfig"))
}

// issue creates a key and a certificate for it.
func (a *authority) issue(name string, cert *x509.Certificate) error {
	key, err := a.newKey(name)
	if err != nil {
		return err
	}
	return a.sign(name, cert, &key.PublicKey)
}

func (a *authority) newKey(name string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, a.write(name+".key", "EC PRIVATE KEY", der)
}

func (a *authority) sign(name string, cert *x509.Certificate, key *ecdsa.PublicKey) error {
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, key, a.key)
	if err != nil {
		return err
	}
	return a.write(name+".crt", "CERTIFICATE", der)
}

func (a *authority) write(name, kind string, der []byte) error {
	return os.WriteFile(a.file(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }
