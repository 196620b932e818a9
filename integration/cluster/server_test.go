// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// badServer stands between metalplug-dra and the API server. It answers in place of the API server, or passes requests on.
type badServer struct {
	*httptest.Server
	answer atomic.Pointer[http.HandlerFunc] // nil if the API server answers
	pass   http.Handler                     // the API server
	asked  atomic.Int64                     // requests for claims that the API server did not get
}

// badServer starts a server that passes requests on, with the rights of an administrator.
func (s *story) badServer() *badServer {
	s.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", s.cluster.File("admin.kubeconfig"))
	s.must(err)
	transport, err := rest.TransportFor(config)
	s.must(err)
	address, err := url.Parse(config.Host)
	s.must(err)
	pass := httputil.NewSingleHostReverseProxy(address)
	pass.Transport, pass.FlushInterval = transport, -1 // a watch is a stream
	b := &badServer{pass: pass}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if answer := b.answer.Load(); answer != nil {
			if strings.Contains(r.URL.Path, "/resourceclaims/") {
				b.asked.Add(1)
			}
			(*answer)(w, r)
			return
		}
		pass.ServeHTTP(w, r)
	}))
	s.Cleanup(func() {
		b.CloseClientConnections()
		b.Close()
	})
	return b
}

// is changes the answers, and ends all connections and so all watches.
func (b *badServer) is(answer http.HandlerFunc) {
	b.asked.Store(0)
	if b.answer.Store(nil); answer != nil {
		b.answer.Store(&answer)
	}
	b.CloseClientConnections()
}

// refused returns an answer of the API server.
func refused(code int, reason string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", "1") // seconds
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": %q, "code": %d, "message": "an answer of the story"}`, reason, code)
	}
}

func TestClaimServer(t *testing.T) {
	s := tell(t, "the API server refuses, delays and loses what metalplug-dra asks, and a pod runs once it answers")
	node := s.start(NodeOptions{Name: s.label(""), Recording: widgets(2), Resources: byClaim})
	s.createClass(node.Name, "")
	b := s.badServer()
	config := api.NewConfig()
	config.Clusters["c"] = &api.Cluster{Server: b.URL}
	config.Contexts["x"] = &api.Context{Cluster: "c"}
	config.CurrentContext = "x"
	s.must(clientcmd.WriteToFile(*config, node.path("var/kubeconfig")))
	driver := s.startDriver(node, "--kubeconfig=/var/kubeconfig")
	s.published(node, 2)
	conflict := refused(http.StatusConflict, "Conflict")
	for i, bad := range []struct {
		name   string
		answer http.HandlerFunc
		writes bool // only the requests that write a ResourceSlice fail
	}{
		{"answers 401", refused(http.StatusUnauthorized, "Unauthorized"), false},
		{"answers 403", refused(http.StatusForbidden, "Forbidden"), false},
		{"answers 429", refused(http.StatusTooManyRequests, "TooManyRequests"), false},
		{"answers 500", refused(http.StatusInternalServerError, "InternalError"), false},
		{"answers nothing", func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // until then, the server does not notice the end of the connection
			<-r.Context().Done()
		}, false},
		{"ends each connection", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, false},
		{"answers 409 to each write", func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				b.pass.ServeHTTP(w, r)
				return
			}
			b.asked.Add(1)
			conflict(w, r)
		}, true},
	} {
		b.is(bad.answer)
		p := claiming(node, s.label(fmt.Sprintf("-%d", i)))
		s.create(p)
		device := s.allocated(p.Name)
		other := widgetID(0)
		if device == strings.ToLower(other) {
			other = widgetID(1)
		}
		s.ctl(node, "cordon", other)
		s.await("metalplug-dra has asked nothing", func(context.Context) error {
			if n := b.asked.Load(); n == 0 {
				return errors.New("no request")
			}
			return nil
		})
		if bad.writes {
			s.phase(p.Name, corev1.PodRunning)
		} else if phase := s.get(p.Name).Status.Phase; phase != corev1.PodPending {
			s.Errorf("while the API server %s, the pod is %s", bad.name, phase)
		}
		if !driver.alive() {
			s.Fatalf("the driver has ended while the API server %s", bad.name)
		}
		b.is(nil)
		began := time.Now()
		s.phase(p.Name, corev1.PodRunning)
		ran := time.Since(began)
		s.published(node, 1, strings.ToLower(other)+" metalplug.io/cordoned NoSchedule")
		published := time.Since(began)
		if _, id := s.got(p.Name); strings.ToLower(id) != device {
			s.Errorf("the pod has %s, and its claim %s", id, device)
		}
		s.prepared(p.Name)
		s.remove(p.Name)
		s.ctl(node, "uncordon", other)
		s.published(node, 2)
		s.step("the API server %s, then the pod runs %v and the slice is written %v after it answers again",
			bad.name, ran.Round(time.Millisecond), published.Round(time.Millisecond))
	}
	b.is(refused(http.StatusForbidden, "Forbidden"))
	p := claiming(node, s.label("-cordoned"))
	s.create(p)
	id := widgetID(0)
	if s.allocated(p.Name) != strings.ToLower(id) {
		id = widgetID(1)
	}
	s.ctl(node, "cordon", id, "--reason", "a story")
	b.is(nil)
	s.event(p.Name, "cordoned: a story -> metalplugctl uncordon "+id)
	if out, err := node.Ctl(s.Context(), "status", "-o", "json"); !strings.Contains(out, "claim "+space+"/"+p.Name) {
		s.Errorf("status does not show the refused claim: %v: %s", err, out)
	}
	s.remove(p.Name)
	s.ctl(node, "uncordon", id)
	s.published(node, 2)
	s.step("a device was cordoned after the scheduler had chosen it, and an event of the pod shows how to uncordon it")
}

func TestClaimNewServer(t *testing.T) {
	s := tell(t, "the API server is replaced by one without any object, and metalplug-dra publishes its devices there")
	s.own("n", release())
	node, driver := s.claims(NodeOptions{Recording: widgets(2), Resources: byClaim}, 2)
	p := claiming(node, s.label(""))
	s.create(p)
	s.phase(p.Name, corev1.PodRunning)
	old := s.claimedBy(node)
	s.must(s.cluster.Replace(s.Context()))
	s.step("the pod, its claim, the slices and the Node are gone")
	node.KillKubelet() // only a kubelet that starts registers its Node
	s.must(node.StartKubelet())
	s.must(node.AwaitReady(s.Context()))
	s.published(node, 2)
	s.step("the kubelet was restarted, and the new API server has the devices")
	s.await("the claim holds its device", func(context.Context) error {
		if now := s.claimedBy(node); len(now) > 0 {
			return fmt.Errorf("%v", now)
		}
		return nil
	})
	s.step("the device of %v is free", slices.Collect(maps.Values(old)))
	before := s.identities(node)
	s.createClass(node.Name, "")
	for i := range 2 {
		next := claiming(node, s.label(fmt.Sprintf("-%d", i)))
		s.create(next)
		s.phase(next.Name, corev1.PodRunning)
	}
	if now := s.identities(node); !maps.Equal(before, now) || !driver.alive() {
		s.Errorf("the slices were %v and are %v, and the driver runs: %v", before, now, driver.alive())
	}
	s.step("two pods run with both devices, and the slices have stayed")
}

// prepared checks that a pod has no event about a claim that was not prepared.
func (s *story) prepared(pod string) {
	s.Helper()
	events, err := s.cluster.Client.CoreV1().Events(space).List(s.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
	s.must(err)
	for _, e := range events.Items {
		if e.Reason == "FailedPrepareDynamicResources" { // kubernetes v1.36 pkg/kubelet/events/event.go
			s.Errorf("event of the pod: %s", e.Message)
		}
	}
}

// allocated waits until the claim of a pod has a device, and returns its name.
func (s *story) allocated(pod string) (device string) {
	s.Helper()
	s.await("the claim of "+pod+" has no device", func(ctx context.Context) error {
		list, err := s.cluster.Client.ResourceV1().ResourceClaims(space).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		at := slices.IndexFunc(list.Items, func(c resourceapi.ResourceClaim) bool {
			return len(c.OwnerReferences) == 1 && c.OwnerReferences[0].Name == pod && c.Status.Allocation != nil
		})
		if at < 0 {
			return fmt.Errorf("there are %d claims", len(list.Items))
		}
		device = list.Items[at].Status.Allocation.Devices.Results[0].Device
		return nil
	})
	return device
}

// event waits until a pod has an event with a text.
func (s *story) event(pod, text string) {
	s.Helper()
	s.await("pod "+pod+" has no event with "+text, func(ctx context.Context) error {
		list, err := s.cluster.Client.CoreV1().Events(space).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
		if err != nil {
			return err
		}
		var all []string
		for _, e := range list.Items {
			if strings.Contains(e.Message, text) {
				return nil
			}
			all = append(all, e.Message)
		}
		return fmt.Errorf("the events are %q", all)
	})
}
