// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

func TestKubeletRestart(t *testing.T) {
	k, d := offered(t, Options{}, plain(4))
	batch(t, k, widgetResource)
	before := devices(t, k)
	if err := k.Restart(within(t)); err != nil {
		t.Fatal(err)
	}
	t.Logf("kubelet.sock -> devices visible: %v", sees(t, k, widgetResource, 4, 4))
	if err := k.FirstBatch(within(t)); err != nil {
		t.Errorf("lost: %v", err)
	}
	if after := devices(t, k); !sameIDs(before, after) {
		t.Errorf("devices after the restart: %v instead of %v", after, before)
	}
	for _, uid := range []string{"running", "crashing", "initialized"} {
		run(t, k, uid, "main")
	}
	admit(t, k, pod("new", widgetResource, 1))
	checkSockets(t, d)
}

// checkSockets checks that the daemon has one socket for each of its two resources, and no other file in the directory.
func checkSockets(t *testing.T, d *daemon) {
	t.Helper()
	eventually(t, "one socket a resource", func() error {
		if own, others := d.sockets(); len(own) != 2 || len(others) != 2 { // kubelet.sock and the checkpoint
			return fmt.Errorf("%v beside %v", own, others)
		}
		return nil
	})
}

// The kubelet restarts a second time while the daemon is still processing the first restart.
func TestTwoKubeletRestartsInARow(t *testing.T) {
	k, d := offered(t, Options{FirstBatch: OnDemand}, plain(4))
	batch(t, k, widgetResource)
	var times []time.Duration
	for i := range 20 {
		if err := k.Restart(within(t)); err != nil {
			t.Fatal(err)
		}
		if i%2 == 1 {
			sees(t, k, widgetResource, 4, 4) // the second restart follows only after the daemon has registered
		}
		if err := k.Restart(within(t)); err != nil {
			t.Fatal(err)
		}
		times = append(times, sees(t, k, widgetResource, 4, 4))
		if err := k.FirstBatch(within(t)); err != nil {
			t.Fatalf("round %d: lost: %v", i, err)
		}
		if strings.Contains(k.Log(), "Failed to connect to new client") {
			t.Errorf("round %d: registered without a socket to connect to:\n%s", i, k.Log())
		}
	}
	report(t, "metalplugd, two restarts in a row", times)
	checkSockets(t, d)
}

// The kubelet does not run for some time, as during an upgrade.
func TestKubeletAway(t *testing.T) {
	k, d := offered(t, Options{}, plain(1))
	k.Kill()
	d.plug(plain(3)) // the hardware changes while the kubelet does not run
	if err := k.Boot(within(t)); err != nil {
		t.Fatal(err)
	}
	sees(t, k, widgetResource, 3, 3)
}

// The hardware changes at each restart of the kubelet. Each time the kubelet must see all devices, and the daemon's number
// of descriptors must not grow.
func TestChangeWithEachRestart(t *testing.T) {
	k, d := offered(t, Options{}, plain(4))
	before := d.descriptors()
	for i := range 100 {
		k.Kill()
		want := int64(4 + (i+1)%2)
		d.plug(plain(int(want)))
		if err := k.Boot(within(t)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the change of this life", func() error {
			counts, err := k.Capacity(within(t))
			if got := counts[widgetResource].Allocatable; err == nil && got != want {
				err = fmt.Errorf("%d allocatable after restart %d instead of %d", got, i, want)
			}
			return err
		})
	}
	checkSockets(t, d)
	// If the kubelet was slow to open a stream, the daemon has registered twice, and may have two streams.
	eventually(t, "no more descriptors than before", func() error {
		after := d.descriptors()
		if after <= before {
			return nil
		}
		k.Kill()
		if err := k.Boot(within(t)); err != nil {
			t.Fatal(err)
		}
		sees(t, k, widgetResource, 4, 4)
		return fmt.Errorf("%d before, %d after", before, after)
	})
}

func TestDaemonRestart(t *testing.T) {
	for name, end := range map[string]func(*daemon){"stop": (*daemon).stop, "kill": (*daemon).kill} {
		t.Run(name, func(t *testing.T) {
			k, d := offered(t, Options{}, plain(4))
			batch(t, k, widgetResource)
			before := devices(t, k)
			end(d)
			sees(t, k, widgetResource, 4, 0)
			d.start()
			sees(t, k, widgetResource, 4, 4)
			if after := devices(t, k); !sameIDs(before, after) {
				t.Errorf("devices after the restart: %v instead of %v", slices.Collect(maps.Keys(after)), slices.Collect(maps.Keys(before)))
			}
			run(t, k, "crashing", "main")
			checkSockets(t, d)
		})
	}
}

// Another process deletes the daemon's own sockets. The daemon must still serve this kubelet and the next one.
func TestOwnSocketDeleted(t *testing.T) {
	k, d := offered(t, Options{}, plain(2))
	own, _ := d.sockets()
	for _, path := range own {
		d.must(os.Remove(path))
	}
	checkSockets(t, d)
	sees(t, k, widgetResource, 2, 2)
	admit(t, k, pod("p1", widgetResource, 1))
	if err := k.Restart(within(t)); err != nil {
		t.Fatal(err)
	}
	sees(t, k, widgetResource, 2, 2)
	if err := k.FirstBatch(within(t)); err != nil {
		t.Errorf("lost: %v", err)
	}
}

// The daemon must not change files in the directory that are not its own, such as kubelet.sock.
func TestForeignFiles(t *testing.T) {
	k, d := offered(t, Options{}, plain(1))
	if err := k.Restart(within(t)); err != nil {
		t.Fatal(err)
	}
	d.must(os.WriteFile(k.DevicePlugins()+"/.foreign", nil, 0o600)) // v1.31 removes files at its start
	sees(t, k, widgetResource, 1, 1)
	d.stop()
	if _, err := os.Stat(k.DevicePlugins() + "/.foreign"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(k.DevicePlugins() + "/kubelet.sock"); err != nil {
		t.Error(err)
	}
	d.start()
	sees(t, k, widgetResource, 1, 1)
}

// The directory is moved away and recreated, as happens when /var/lib/kubelet is reset or a file system is mounted over
// it.
func TestDirectoryReplaced(t *testing.T) {
	for _, which := range []string{"k/device-plugins", "k"} {
		t.Run(which, func(t *testing.T) {
			outer := shortDir(t)
			dir := outer + "/k"
			d := newDaemon(t, dir, plain(2))
			k := newNode(t, Options{Dir: dir})
			sees(t, k, widgetResource, 2, 2)
			k.Kill()
			d.must(os.Rename(filepath.Join(outer, which), outer+"/old"))
			d.must(os.MkdirAll(dir, 0o755))
			if err := k.Boot(within(t)); err != nil {
				t.Fatal(err)
			}
			sees(t, k, widgetResource, 2, 2)
			d.must(os.RemoveAll(outer + "/old"))
			if err := k.Restart(within(t)); err != nil {
				t.Fatal(err)
			}
			sees(t, k, widgetResource, 2, 2)
		})
	}
}

// restarts is the number of measured restarts.
const restarts = 50

// TestRestartTimes prints the time from the return of kubelet.sock until the devices are visible, for metalplugd and, in the
// same run, for a minimal plugin. The test does not check the times. It fails only if the kubelet rejects a pod after the
// devices are visible.
func TestRestartTimes(t *testing.T) {
	t.Run("metalplugd", func(t *testing.T) {
		k, _ := offered(t, Options{FirstBatch: OnDemand}, plain(8))
		batch(t, k, widgetResource)
		times := restartTimes(t, k, widgetResource, 8)
		report(t, "metalplugd, 8 devices", times)
	})
	t.Run("rival", func(t *testing.T) {
		k, r := registered(t, Options{FirstBatch: OnDemand}, onNode("a", -1), onNode("b", -1), onNode("c", -1))
		batch(t, k, gadget)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.follow(ctx) }()
		times := restartTimes(t, k, gadget, 3)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		report(t, "hand-written Register, 3 devices", times)
	})
}

func restartTimes(t *testing.T, k *Kubelet, resource string, n int64) []time.Duration {
	t.Helper()
	var times []time.Duration
	for i := range restarts {
		if err := k.Restart(within(t)); err != nil {
			t.Fatal(err)
		}
		times = append(times, sees(t, k, resource, n, n))
		if err := k.FirstBatch(within(t)); err != nil {
			t.Fatalf("restart %d: lost: %v", i, err)
		}
	}
	return times
}

// report prints quantiles, and how many restarts took longer than real kubelets took to admit their first pod.
func report(t *testing.T, who string, times []time.Duration) {
	t.Helper()
	slices.Sort(times)
	at := func(percent int) time.Duration {
		return times[min(len(times)*percent/100, len(times)-1)].Round(10 * time.Microsecond)
	}
	t.Logf("%s: kubelet.sock -> devices visible, %d restarts: p50 %v p90 %v p99 %v max %v",
		who, len(times), at(50), at(90), at(99), at(100))
	for _, limit := range []time.Duration{10, 25, 50, 190} {
		limit *= time.Millisecond
		n, _ := slices.BinarySearch(times, limit)
		t.Logf("%s: later than %v: %d", who, limit, len(times)-n)
	}
}

// follow registers the plugin each time kubelet.sock is created.
func (r *rival) follow(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.Add(r.dir); err != nil {
		return err
	}
	for {
		select {
		case e := <-w.Events:
			if !e.Op.Has(fsnotify.Create) || filepath.Base(e.Name) != "kubelet.sock" {
				continue
			}
			_ = r.register(ctx) // this fails if the kubelet has ended already; the plugin registers with the next one
		case <-ctx.Done():
			return nil
		}
	}
}
