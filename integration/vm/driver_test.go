//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/integration/vm"
)

// driverConfig is a drop-in for the configuration of the package.
const driverConfig = `[[resource]]
name = "metalplug.io/nvme"
class = "nvme"
serve = "dra"
reset = { method = "auto", scrub = "zero", when = "both", timeout = "2m" }
`

// programs is the folder in which "make cluster-programs" puts its programs.
const programs = "../../bin"

// server is a control plane on this host.
type server struct {
	kubeconfig string // of the administrator
	port       string
	authority  string // certificate of the API server's authority, base64
}

// TestDriver tests metalplug-dra from its package, with a control plane outside of the machine. A test program acts as
// the kubelet.
func TestDriver(t *testing.T) {
	t.Parallel() // so that other tests start while this test waits for its machines
	for _, p := range policies {
		t.Run(p.name, func(t *testing.T) {
			in := bootInstallable(t, p, vm.Options{Drives: installedDrives()})
			c := startServer(t)
			steps := []step{{"install", c.installDriver}, {"publish", c.publish}, {"without rights", driverRights}, {"one address", c.limitDriver}}
			if p.name == selinux.name {
				steps = append(steps, step{"labels", driverLabels})
			}
			steps = append(steps, step{"claims", c.claims}, step{"denials", noDenials}, step{"a denial is seen", canary})
			if p.name == appArmor.name {
				steps = append(steps, step{"taken over", driverTakenOver})
			}
			in.tell(t, append(steps, step{"purge", driverPurged}))
		})
	}
}

// startServer starts a control plane, which ends with the test.
func startServer(t *testing.T) *server {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "c") // short, because the path of a socket has 107 bytes
	log := filepath.Join(t.TempDir(), "log")
	file, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(programs+"/cluster/up", "--programs", programs, "--dir", dir)
	c.Stdout, c.Stderr = file, file
	if err := c.Start(); err != nil {
		vm.Need(t, "vm", err)
	}
	_ = file.Close() // the program has it
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	t.Cleanup(func() {
		_ = c.Process.Signal(os.Interrupt)
		<-ended
	})
	for tick := time.Tick(time.Second); ; <-tick {
		text, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "Ctrl-C ends") {
			break
		}
		if len(ended) > 0 {
			t.Fatalf("the control plane does not start: %s", text)
		}
	}
	s := &server{kubeconfig: filepath.Join(dir, "admin.kubeconfig")}
	var config struct {
		Clusters []struct {
			Cluster struct {
				Server    string `json:"server"`
				Authority string `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
	}
	if err := json.Unmarshal([]byte(s.kubectl(t, "", "config", "view", "--raw", "--flatten", "--output=json")), &config); err != nil || len(config.Clusters) != 1 {
		t.Fatalf("read the kubeconfig: %v", err)
	}
	found := config.Clusters[0].Cluster
	s.port, s.authority = found.Server[strings.LastIndex(found.Server, ":")+1:], found.Authority
	return s
}

// kubectl runs kubectl as the administrator.
func (s *server) kubectl(t *testing.T, input string, args ...string) string {
	t.Helper()
	c := exec.Command(programs+"/cluster/kubectl-v1.36", append([]string{"--kubeconfig", s.kubeconfig}, args...)...)
	var wrong strings.Builder
	c.Stdin, c.Stderr = strings.NewReader(input), &wrong
	out, err := c.Output()
	if err != nil {
		t.Fatalf("kubectl %s: %v %s", strings.Join(args, " "), err, wrong.String())
	}
	return strings.TrimSpace(string(out))
}

// kubeconfigFor returns a kubeconfig for the machine, with a user.
func (s *server) kubeconfigFor(user string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://%s:%s", tls-server-name: 127.0.0.1, certificate-authority-data: %s}}]
users: [{name: u, user: %s}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, vm.HostAddress, s.port, s.authority, user)
}

// installDriver installs the packages, and gives the driver its identity.
func (s *server) installDriver(in *installation, t *testing.T) {
	in.apt(append(in.packages(), in.debs.DRA)...)
	if state := in.m.Try("systemctl", "is-enabled", "metalplug-dra").Stdout; strings.TrimSpace(state) != "disabled" {
		t.Errorf("after the installation the driver is %s", state)
	}
	in.m.PlugNetwork()
	in.m.Run("mkdir", "-p", "/sys/fs/cgroup/kubepods") // of a kubelet; a device is only free if the cgroup of its pod is gone
	node := in.m.Run("hostname")
	s.kubectl(t, `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "`+node+`"}}`, "create", "-f", "-")
	s.kubectl(t, "", "apply", "-f", "../../packaging/kubernetes/identity.yaml", "-f", "../../packaging/kubernetes/classes.yaml")
	token := s.kubectl(t, "", "-n", "metalplug", "create", "token", "metalplug-dra",
		"--bound-object-kind", "Node", "--bound-object-name", node, "--duration", "8760h")
	in.m.Run("mkdir", "-p", "/etc/kubernetes")
	in.m.Write("/etc/kubernetes/kubelet.conf", s.kubeconfigFor("{client-certificate: /nonexistent, client-key: /nonexistent}"))
	in.m.Write("/etc/metalplug-dra/token", token)
	in.m.Run("mkdir", "-p", "/etc/metalplug/conf.d")
	in.m.Write(dropIn, driverConfig)
}

// publish starts the driver, and waits until the API server has the drives.
func (s *server) publish(in *installation, t *testing.T) {
	in.m.Run("systemctl", "restart", "metalplugd")
	in.m.Run("systemctl", "enable", "--now", "metalplug-dra")
	in.m.Eventually("all drives are in ResourceSlices", patience, func() bool {
		free := s.kubectl(t, "", "get", "resourceslices", "--output=go-template={{range .items}}{{range .spec.devices}}{{if not .taints}}{{.name}} {{end}}{{end}}{{end}}")
		return len(strings.Fields(free)) == len(drives)
	})
}

// limitDriver checks the drop-in of docs/dra.md, which limits the driver's connections to the API server. The driver keeps the
// drop-in in the steps that follow.
func (s *server) limitDriver(in *installation, t *testing.T) {
	allow := func(address string) {
		in.m.Write("/etc/systemd/system/metalplug-dra.service.d/network.conf", "[Service]\nIPAddressDeny=any\nIPAddressAllow="+address+"\n")
		in.m.Run("systemctl", "daemon-reload")
		in.m.Run("systemctl", "restart", "metalplug-dra")
	}
	in.m.Run("mkdir", "-p", "/etc/systemd/system/metalplug-dra.service.d")
	allow("192.0.2.1") // not the API server's address (RFC 5737)
	in.m.Eventually("no connection to the API server", patience, func() bool {
		return strings.Contains(in.m.Run("metalplugctl", "status", "-o", "json"), "the ResourceSlices are not written")
	})
	allow(vm.HostAddress)
	in.m.Eventually("a connection to the API server", patience, func() bool {
		return !strings.Contains(in.m.Run("metalplugctl", "status", "-o", "json"), "the ResourceSlices are not written")
	})
}

// driverRights checks the driver from the kernel's view: a context, a user, no capability, no device.
func driverRights(in *installation, t *testing.T) {
	in.checkContext(t, "metalplug-dra")
	pid := in.m.Run("systemctl", "show", "--value", "--property", "MainPID", "metalplug-dra")
	status := in.m.Run("cat", "/proc/"+pid+"/status")
	for _, want := range []string{
		"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2",
		"Uid:\t" + in.m.Run("id", "-u", "metalplug-dra") + "\t",
	} {
		if !strings.Contains(status, want) {
			t.Errorf("%q is not in /proc/PID/status:\n%s", want, status)
		}
	}
	if open := in.m.Try("sh", "-c", "readlink /proc/"+pid+"/fd/* | grep '^/dev/' | sort -u").Stdout; open != "/dev/null\n" {
		t.Errorf("it has devices open: %q", open)
	}
}

// driverLabels checks the labels of the driver's files and sockets.
func driverLabels(in *installation, t *testing.T) {
	for path, label := range map[string]string{
		"/etc/metalplug-dra/token":                                "metalplug_dra_etc_t",
		"/run/metalplug/claims.sock":                              "metalplugd_claims_sock_t",
		"/var/lib/kubelet/plugins/metalplug.io/dra.sock":          "metalplugd_plugin_sock_t",
		"/var/lib/kubelet/plugins_registry/metalplug.io-reg.sock": "metalplugd_plugin_sock_t",
		"/usr/sbin/metalplug-dra":                                 "metalplug_dra_exec_t",
	} {
		if got := in.m.Run("stat", "-c", "%C", path); !strings.Contains(got, ":"+label+":") {
			t.Errorf("%s has the label %s, want %s", path, got, label)
		}
	}
}

// driverTakenOver runs programs with the driver's profile.
func driverTakenOver(in *installation, t *testing.T) {
	in.m.Sh("cp $(readlink -f /usr/bin/perl) " + probe)
	if said, done := in.below("metalplug-dra", readPath("/etc/nsswitch.conf")); !done {
		t.Errorf("it does not read /etc/nsswitch.conf: %s", said)
	}
	in.checkDenied(t, "metalplug-dra", map[string]string{
		"read passwords":         readPath("/etc/shadow"),
		"read the kubeconfig":    readPath("/etc/kubernetes/kubelet.conf"),
		"write the kubelet's":    writePath("/var/lib/kubelet/kubeadm-flags.env"),
		"write a CDI spec":       writePath("/run/cdi/probe.json"),
		"open a disk":            readPath("/dev/nvme0n1"),
		"call a program":         `exec "/bin/true"; die $!`,
		"open a raw socket":      `use Socket; socket(my $s, 17, SOCK_RAW, 0) or die $!`,
		"signal another process": `kill(0, 1) or die $!`,
	})
}

// confined matches the checks of dra-sanity that run in the machine. Their requests reach each file and socket that a request
// can reach: those for the registration, the slices, the health, a claim with its CDI spec, an erasure and the next claim of
// the disk, and a start of both programs. The other checks vary the content of these requests. They run in the cluster
// (TestClaimSanity in integration/cluster).
const confined = "^(registration|slices|health|boot)/|prepare/(cdi|missing|unknown|next)$|^restart/(slices|prepare)$"

// claims lets dra-sanity prepare and release claims of the drives, restart the driver, and empty /run/cdi as a boot does.
func (s *server) claims(in *installation, t *testing.T) {
	s.kubectl(t, "", "create", "clusterrolebinding", "sanity", "--clusterrole=cluster-admin", "--serviceaccount=default:default")
	secret := s.kubectl(t, "", "create", "token", "default")
	in.m.Write("/tmp/kubeconfig", s.kubeconfigFor("{token: "+secret+"}"))
	in.m.Push(programs+"/dra-sanity", "/usr/local/bin/dra-sanity")
	run := in.m.Start("dra-sanity", "--kubeconfig=/tmp/kubeconfig", "--node="+in.m.Run("hostname"), "--driver=metalplug.io",
		"--class=nvme.metalplug.io", "--run="+confined, "--restart=systemctl restart metalplug-dra",
		"--boot=systemctl stop metalplug-dra metalplugd && rm -f /run/cdi/metalplug* && systemctl start metalplugd metalplug-dra",
		"--timeout=5m", "--wipe=5m")
	for n := 0; ; n++ {
		l, err := run.Await(n, 10*time.Minute, func(vm.Line) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		t.Log(l.Text)
		if strings.HasPrefix(l.Text, "metalplug.io on ") { // the last line
			if !strings.HasSuffix(l.Text, " 0 failed, 0 skipped") {
				t.Error("a check failed, or was skipped")
			}
			return
		}
	}
}

// driverPurged removes the package, and checks what it leaves.
func driverPurged(in *installation, t *testing.T) {
	in.aptGet("purge", "metalplug-dra")
	for _, path := range []string{
		"/etc/metalplug-dra", "/etc/apparmor.d/metalplug-dra", "/usr/sbin/metalplug-dra",
		"/var/lib/kubelet/plugins/metalplug.io", "/var/lib/kubelet/plugins_registry/metalplug.io-reg.sock",
	} {
		if in.m.Try("test", "-e", path).Code == 0 {
			t.Errorf("the purge leaves %s", path)
		}
	}
	in.active(t)
}
