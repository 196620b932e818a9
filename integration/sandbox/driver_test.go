//go:build integration

// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/metalplug/metalplug/daemon/api"
)

// The sockets of metalplug-dra.socket.
const (
	driverSocket       = "/var/lib/kubelet/plugins/metalplug.io/dra.sock"
	registrationSocket = "/var/lib/kubelet/plugins_registry/metalplug.io-reg.sock"
)

// driverFiles are the files of an API server that does not answer. The kubeconfig names files of the kubelet, as kubeadm's does.
const driverFiles = `
mkdir -p /etc/kubernetes
install -d -m 700 /etc/metalplug-dra
cat >/etc/kubernetes/kubelet.conf <<'END'
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {client-certificate: /var/lib/kubelet/pki/x.pem, client-key: /var/lib/kubelet/pki/x.pem}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
END
echo token >/etc/metalplug-dra/token
`

// dial connects to a socket of the container.
func (m *machine) dial(path string) *grpc.ClientConn {
	m.t.Helper()
	c, err := grpc.NewClient("unix:///proc/"+m.leader+"/root"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { c.Close() })
	return c
}

// TestDriver checks that metalplug-dra works inside the sandbox of its unit, and that systemd holds its sockets while it
// restarts.
func TestDriver(t *testing.T) {
	for _, suite := range suites {
		t.Run(suite, func(t *testing.T) {
			m := boot(t, suite)
			m.sh(driverFiles)
			m.write("/etc/metalplug/metalplug.toml", zeroConfig+"serve = \"dra\"\n")
			m.sh("systemctl start metalplugd metalplug-dra") // systemd waits for READY=1 (sd_notify)
			m.want("user", m.sh("ps -o user:20= -p $(systemctl show -P MainPID metalplug-dra)"), "metalplug-dra")
			for socket, want := range map[string]string{
				driverSocket: "600 root", registrationSocket: "600 root", "/run/metalplug/claims.sock": "660 root metalplug-dra",
			} {
				m.want(socket, m.sh("stat -c '%a %U %G' "+socket), want)
			}
			m.checkRegistered()
			m.checkClaimSocket()
			m.restartDriver()
			m.sh("systemctl stop metalplug-dra")
			m.await("the end of the sockets", func() bool {
				_, err := m.try("test ! -e " + driverSocket + " && test ! -e " + registrationSocket)
				return err == nil
			})
		})
	}
}

// checkRegistered checks the answer to the kubelet's first request.
func (m *machine) checkRegistered() {
	info, err := registration.NewRegistrationClient(m.dial(registrationSocket)).GetInfo(m.t.Context(), &registration.InfoRequest{})
	if err != nil || info.GetName() != "metalplug.io" || info.GetEndpoint() != driverSocket {
		m.t.Errorf("GetInfo: %v, %v", info, err)
	}
}

// checkClaimSocket checks that the driver's user reaches the socket for claims and no other, and that metalplugd can write CDI
// specs. In a container, metalplug-holders refuses to inspect processes, so that no claim is prepared.
func (m *machine) checkClaimSocket() {
	m.sh("runuser -u metalplug-dra -- test -w /run/metalplug/claims.sock")
	for _, forbidden := range []string{"metalplug-dra -- test -w /run/metalplug/control.sock", "nobody -- test -w /run/metalplug/claims.sock"} {
		if _, err := m.try("runuser -u " + forbidden); err == nil {
			m.t.Error(forbidden)
		}
	}
	if log := m.sh("journalctl -b -o cat -u metalplug-dra"); strings.Contains(log, "metalplugd unavailable") {
		m.t.Errorf("log:\n%s", log)
	}
	claims := api.Client{Socket: filepath.Join("/proc", m.leader, "root/run/metalplug/claims.sock")}
	ask := api.Claim{Namespace: "default", Name: "claim", Requests: []api.ClaimRequest{{Name: "zero", Devices: []string{"node-zero"}}}}
	var prepared api.Prepared
	if err := claims.Post(m.t.Context(), "/v1/claims/0123/prepare", ask, &prepared); err == nil || !strings.Contains(err.Error(), "read the answer of metalplug-holders") {
		m.t.Errorf("prepare: %v", err)
	}
	m.sh("nsenter -t $(systemctl show -P MainPID metalplugd) -m findmnt -n -o OPTIONS /run/cdi | grep rw")
	if err := claims.Post(m.t.Context(), "/v1/claims/0123/unprepare", nil, new(struct{})); err != nil {
		m.t.Error(err)
	}
}

// restartDriver restarts and kills the driver, and sends a request of the kubelet in between. systemd keeps it until the driver
// answers, and the sockets stay.
func (m *machine) restartDriver() {
	inodes := m.sh("stat -c %i " + driverSocket + " " + registrationSocket)
	for _, how := range []string{"restart", "kill -s KILL"} {
		pid := m.sh("systemctl show -P MainPID metalplug-dra")
		done := make(chan error, 1)
		go func() {
			_, err := m.try("systemctl " + how + " metalplug-dra")
			done <- err
		}()
		m.await("the end of the driver", func() bool {
			_, err := m.try("kill -0 " + pid)
			return err != nil
		})
		sent := time.Now()
		_, err := dra.NewDRAPluginClient(m.dial(driverSocket)).NodePrepareResources(m.t.Context(), &dra.NodePrepareResourcesRequest{})
		m.t.Logf("systemctl %s: the next request took %v", how, time.Since(sent))
		if ended := <-done; err != nil || ended != nil {
			m.t.Errorf("systemctl %s: %v, request %v", how, ended, err)
		}
	}
	if now := m.sh("stat -c %i " + driverSocket + " " + registrationSocket); now != inodes {
		m.t.Errorf("the sockets were created again: %s, before %s", now, inodes)
	}
	m.checkRegistered()
}
