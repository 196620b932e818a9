// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// renew writes a certificate of a node as a kubelet does. A file has the certificate and its key, and the link
// /var/current.pem to this file is replaced. renew returns when the certificate ends.
func (s *story) renew(node *Node, life time.Duration) (end time.Time) {
	s.Helper()
	a := s.cluster.authority
	cert := template(pkix.Name{CommonName: "system:node:" + node.Name, Organization: []string{"system:nodes"}})
	cert.ExtKeyUsage, cert.NotAfter = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, time.Now().Add(life)
	name := fmt.Sprint(node.Name, "-", cert.SerialNumber)
	s.must(a.issue(name, cert))
	public, err := os.ReadFile(a.file(name + ".crt"))
	s.must(err)
	key, err := os.ReadFile(a.file(name + ".key"))
	s.must(err)
	s.must(os.WriteFile(node.path("var/"+name+".pem"), slices.Concat(public, key), 0o600))
	s.must(os.Symlink(name+".pem", node.path("var/updated.pem")))
	s.must(os.Rename(node.path("var/updated.pem"), node.path("var/current.pem")))
	return cert.NotAfter
}

// ended waits for a time.
func (s *story) ended(end time.Time) {
	s.Helper()
	s.await("the certificate has not ended", func(context.Context) error {
		if time.Now().After(end.Add(time.Second)) { // a certificate has whole seconds
			return nil
		}
		return errors.New("it is valid")
	})
}

// identified writes a kubeconfig for metalplug-dra with a user, and returns the flag for it.
func (s *story) identified(node *Node, user *api.AuthInfo) string {
	s.Helper()
	config := api.NewConfig()
	config.Clusters["c"] = &api.Cluster{Server: s.cluster.authority.server, CertificateAuthority: s.cluster.File("ca.crt")}
	config.AuthInfos["u"] = user
	config.Contexts["x"] = &api.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	s.must(clientcmd.WriteToFile(*config, node.path("var/kubeconfig")))
	return "--kubeconfig=/var/kubeconfig"
}

// unauthorized makes a change while the certificate of the driver has ended, and waits until the API server refuses the driver.
func (s *story) unauthorized(node *Node, change func()) {
	s.Helper()
	refusals := func() int {
		text, err := os.ReadFile(node.path("metalplug-dra.log"))
		s.must(err)
		return strings.Count(string(text), "Unauthorized")
	}
	before := refusals()
	change()
	s.await("the API server has not refused the driver", func(context.Context) error {
		if n := refusals(); n <= before {
			return fmt.Errorf("%d refusals", n)
		}
		return nil
	})
}

func TestClaimRenewal(t *testing.T) {
	tainted := strings.ToLower(widgetID(0)) + " metalplug.io/cordoned NoSchedule"
	t.Run("file", func(t *testing.T) {
		s := tell(t, "a certificate is renewed before and after its end, and metalplug-dra uses the new file without a restart")
		node := s.start(NodeOptions{Name: s.label(""), Recording: widgets(2), Resources: byClaim})
		s.createClass(node.Name, "")
		end := s.renew(node, 25*time.Second)
		driver := s.startDriver(node, s.identified(node, &api.AuthInfo{ClientCertificate: "/var/current.pem", ClientKey: "/var/current.pem"}))
		s.published(node, 2)
		next := s.renew(node, 45*time.Second)
		s.ended(end)
		s.ctl(node, "cordon", widgetID(0))
		s.published(node, 1, tainted)
		s.step("the certificate was renewed and has ended, and a cordon was published")
		s.ended(next)
		p := claiming(node, s.label("-0"))
		s.create(p)
		s.allocated(p.Name)
		s.unauthorized(node, func() { s.ctl(node, "uncordon", widgetID(0)) })
		s.published(node, 1, tainted)
		s.step("the next certificate has ended, and the slices are those of before")
		s.renew(node, time.Hour)
		began := time.Now()
		s.published(node, 2)
		published := time.Since(began)
		s.phase(p.Name, corev1.PodRunning)
		s.prepared(p.Name)
		if !driver.alive() {
			s.Error("the driver has ended")
		}
		text, err := os.ReadFile(node.path("metalplug-dra.log"))
		s.must(err)
		if n := strings.Count(string(text), "the identity has expired"); n != 1 {
			s.Errorf("the log shows %d times that the identity has expired", n)
		}
		s.step("it was renewed, the slice is written after %v, and a pod runs after %v",
			published.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	})
	t.Run("content", func(t *testing.T) {
		s := tell(t, "a certificate in a kubeconfig ends, and metalplug-dra uses the next kubeconfig after a restart")
		node := s.start(NodeOptions{Name: s.label(""), Recording: widgets(2), Resources: byClaim})
		inline := func(life time.Duration) (flag string, end time.Time) {
			end = s.renew(node, life)
			text, err := os.ReadFile(node.path("var/current.pem"))
			s.must(err)
			return s.identified(node, &api.AuthInfo{ClientCertificateData: text, ClientKeyData: text}), end
		}
		flag, end := inline(20 * time.Second)
		driver := s.startDriver(node, flag)
		s.published(node, 2)
		s.ended(end)
		s.unauthorized(node, func() { s.ctl(node, "cordon", widgetID(0)) })
		inline(time.Hour)
		s.unauthorized(node, func() {})
		s.published(node, 2)
		s.step("the certificate has ended, and the slices are those of before, although there is a new kubeconfig")
		driver.kill()
		s.startDriver(node, flag)
		s.published(node, 1, tainted)
		s.step("metalplug-dra was restarted, and the cordon was published")
	})
}
