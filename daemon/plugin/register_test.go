// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// alone is an endpoint that does not run, for a test that takes its steps itself.
func alone(t *testing.T) *Endpoint {
	t.Helper()
	dir, err := os.MkdirTemp("", "mp") // short: the path of a unix socket has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	e := &Endpoint{
		Resource: Resource{Name: "example.org/widget"}, Dir: dir, Watch: &Watch{Dir: dir, Log: log}, Log: log,
		name: socketPrefix + "x.sock",
	}
	e.streams.changed = make(chan struct{}, 1)
	e.server = e.newServer()
	t.Cleanup(func() {
		e.close()
		os.RemoveAll(dir)
	})
	return e
}

// answering is a kubelet that answers each registration alike.
type answering struct {
	pluginapi.UnimplementedRegistrationServer
	err    error
	before func(context.Context) // it answers; may be nil
}

func (a answering) Register(ctx context.Context, _ *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	if a.before != nil {
		a.before(ctx)
	}
	return &pluginapi.Empty{}, a.err
}

func (a answering) serve(t *testing.T, dir string, options ...grpc.ServerOption) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(dir, kubeletSocket))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	pluginapi.RegisterRegistrationServer(server, a)
	go server.Serve(l)
	t.Cleanup(server.Stop)
}

func TestSocketIsMadeAgainAfterItCouldNotBeReached(t *testing.T) {
	e := alone(t)
	if err := e.ensureSocket(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(e.path(), e.path()+".away"); err != nil { // as the kubelet's sweep may, right after
		t.Fatal(err)
	}
	if err := e.checkOwn(); !errors.Is(err, unix.ENOENT) || e.listener != nil {
		t.Errorf("checkOwn = %v with the listener %v, want that the socket is missing and given up", err, e.listener)
	}
	if err := e.ensureSocket(); err != nil {
		t.Error(err)
	}
}

// The kubelet dials us while our call of Register waits for it.
func TestSocketIsMadeAgainDuringRegister(t *testing.T) {
	e := alone(t)
	calls := 0
	answering{before: func(ctx context.Context) {
		calls++
		os.Remove(e.path())
		again := time.NewTicker(time.Millisecond) // as the kubelet's dial, which goes on until the call ends
		defer again.Stop()
		for ctx.Err() == nil {
			if c, err := net.Dial("unix", e.path()); err == nil {
				c.Close()
				return
			}
			<-again.C
		}
	}}.serve(t, e.Dir)
	kubelet := e.look()
	if wait := e.register(t.Context(), kubelet); wait != streamLimit || e.registered != kubelet || calls != 1 {
		t.Errorf("register = %v with %d calls, complaint %q; want that the first one is answered", wait, calls, e.complaint)
	}
}

// A socket that nobody may connect to, as SELinux can have it, is not made anew at once: that it comes and goes would be
// the next reason to.
func TestUnreachableSocketIsNoReasonToHurry(t *testing.T) {
	e := alone(t)
	if err := e.ensureSocket(); err != nil {
		t.Fatal(err)
	}
	e.listener.SetUnlinkOnClose(false)
	e.listener.Close()
	if err := e.checkOwn(); !errors.Is(err, unix.ECONNREFUSED) {
		t.Fatalf("checkOwn = %v, want that it refuses", err)
	}
	e.unreached = e.unreached.Add(time.Hour) // so that it cannot be long ago
	if err := e.ensureSocket(); !errors.Is(err, unix.ECONNREFUSED) || e.listener != nil {
		t.Errorf("right after: %v with the listener %v, want the same error and none", err, e.listener)
	}
	e.unreached = e.unreached.Add(-time.Hour - backstop)
	if err := e.ensureSocket(); err != nil || e.listener == nil || e.unreachable != nil {
		t.Errorf("later: %v, still %v", err, e.unreachable)
	}
}

func TestUnlistenLeavesWhatIsAnothers(t *testing.T) {
	path := filepath.Join(alone(t).Dir, "s.sock")
	l, own, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".old"); err != nil { // keeps its inode from being used again
		t.Fatal(err)
	}
	other, otherOwn, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	unlisten(l, path, own)
	if !socketIdentity(path).sameFile(otherOwn) {
		t.Error("another's socket is gone")
	}
	unlisten(other, path, otherOwn)
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the own socket is left behind: %v", err)
	}
}

func TestRefusedRegistrationIsNoReasonToHurry(t *testing.T) {
	e := alone(t)
	answering{err: errors.New("requested API version is not supported")}.serve(t, e.Dir)
	kubelet := e.look()
	for i, want := range []time.Duration{settlePause, 2 * settlePause, 4 * settlePause, 8 * settlePause, lastPause, lastPause} {
		e.firstSeen = time.Now()
		if got := e.register(t.Context(), kubelet); got != want {
			t.Errorf("refusal %d: pause %v, want %v", i+1, got, want)
		}
	}
}

func TestOnlyAKubeletAboutToListenIsTriedAtOnce(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		old  bool
		want time.Duration
	}{
		{"bound, not listening", unix.ECONNREFUSED, false, eagerPause},
		{"removed", unix.ENOENT, false, eagerPause},
		{"another error", unix.EACCES, false, settlePause},
		{"for long", unix.ECONNREFUSED, true, settlePause},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := alone(t)
			if e.firstSeen = time.Now().Add(time.Hour); test.old { // so that it cannot be long ago
				e.firstSeen = time.Now().Add(-eager)
			}
			if got := e.unanswered(fmt.Errorf("connect to kubelet.sock: %w", test.err)); got != test.want {
				t.Errorf("pause %v, want %v", got, test.want)
			}
		})
	}
}

func TestPauseAfterAStream(t *testing.T) {
	for _, test := range []struct {
		name          string
		lived         time.Duration
		before, after time.Duration
	}{
		{"the first was short", 0, 0, settlePause},
		{"one more was short", lastPause, settlePause, 2 * settlePause},
		{"many were short", 0, lastPause, lastPause},
		{"it lived long", lastPause + 1, lastPause, settlePause},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := alone(t)
			e.registered, e.pause = identity{inode: 1}, test.before
			e.streams.ended, e.streams.lived = time.Now(), test.lived
			e.afterStream(e.registered)
			if e.pause != test.after {
				t.Errorf("pause %v, want %v", e.pause, test.after)
			}
			if least := e.streams.ended.Add(e.pause / 2); e.notBefore.Before(least) || e.registered != (identity{}) {
				t.Errorf("registered %v, again not before %v, want at least %v", e.registered, e.notBefore, least)
			}
		})
	}
}

func TestStreamsKnowHowLongTheLastOneLived(t *testing.T) {
	s := streams{changed: make(chan struct{}, 1), kubelet: 1}
	st := s.begin(1, nil)
	st.opened = st.opened.Add(-time.Hour)
	s.over(st)
	s.over(s.begin(2, nil))
	if ended, lived := s.last(); ended.IsZero() || lived < time.Hour {
		t.Errorf("ended %v, lived %v, want an hour", ended, lived)
	}
}

// Somebody else of uid 0 who watches must not make us believe that the kubelet does.
func TestOnlyTheKubeletsStreamsCount(t *testing.T) {
	e := alone(t)
	answering{}.serve(t, e.Dir)
	e.converge(t.Context())
	own := int32(os.Getpid()) // the kubelet of this test
	foreign := e.streams.begin(own+1, nil)
	defer e.streams.over(foreign)
	if e.Status().Connected || e.streams.everSince(e.since) {
		t.Errorf("a foreign stream counts: %+v", e.Status())
	}
	kubelet := e.streams.begin(own, nil)
	if got := e.converge(t.Context()); got != 0 || !e.Status().Connected {
		t.Errorf("with the kubelet's: look again after %v, status %+v", got, e.Status())
	}
	e.streams.over(kubelet)
	e.streams.ended = e.streams.ended.Add(time.Hour) // so that the pause cannot be over
	if got := e.converge(t.Context()); got <= 0 || e.Status() != (Status{}) {
		t.Errorf("after it has ended: look again after %v, status %+v, want another registration soon", got, e.Status())
	}
}

// Where what opens the stream is not what listens at kubelet.sock, registering again and again would not help.
func TestStreamOfAnotherProcessIsTheKubeletsWhereItHasNone(t *testing.T) {
	e := alone(t)
	answering{}.serve(t, e.Dir)
	e.converge(t.Context())
	st := e.streams.begin(int32(os.Getpid())+1, nil)
	e.since, st.opened = e.since.Add(-streamLimit), st.opened.Add(-streamLimit/2)
	if got := e.converge(t.Context()); got != 0 || e.Status() != (Status{Registered: true, Connected: true}) {
		t.Errorf("look again after %v, status %+v", got, e.Status())
	}
	e.streams.over(st)
	e.streams.ended = e.streams.ended.Add(time.Hour) // so that the pause cannot be over
	if got := e.converge(t.Context()); got <= 0 || e.Status() != (Status{}) {
		t.Errorf("after its end: look again after %v, status %+v", got, e.Status())
	}
}

// What served the resource before has ended, and the kubelet may not know yet: it is registered with once it answers and
// has had a while.
func TestKubeletHearsOfTheLastEndpointFirst(t *testing.T) {
	e := alone(t)
	answering{}.serve(t, e.Dir)
	e.unheard = true
	if got := e.converge(t.Context()); got != 2*settlePause || e.Status().Registered {
		t.Errorf("at first: look again after %v, status %+v", got, e.Status())
	}
	e.notBefore = e.notBefore.Add(time.Hour) // so that it cannot be over
	if got := e.converge(t.Context()); got <= 0 || e.Status().Registered {
		t.Errorf("meanwhile: look again after %v, status %+v", got, e.Status())
	}
	e.notBefore = time.Now()
	if e.converge(t.Context()); !e.Status().Registered {
		t.Error("not registered after that")
	}
}

// Whatever answers has heard of it, also what lets no call through but those that it knows.
func TestKubeletThatAnswersOtherwiseHasHeard(t *testing.T) {
	for _, answer := range []error{nil, status.Error(codes.PermissionDenied, "no"), status.Error(codes.Unauthenticated, "no")} {
		e := alone(t)
		answering{}.serve(t, e.Dir, grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return answer }))
		e.unheard = true
		if got := e.converge(t.Context()); got != 2*settlePause || e.unheard {
			t.Errorf("%v: look again after %v, complaint %q", answer, got, e.complaint)
		}
	}
}

// One that takes the connection and is gone has answered nothing.
func TestKubeletThatEndsHearsNothing(t *testing.T) {
	e := alone(t)
	l, err := net.Listen("unix", filepath.Join(e.Dir, kubeletSocket))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			c.Close()
		}
	}()
	e.unheard = true
	if got := e.converge(t.Context()); got != settlePause || !e.unheard {
		t.Errorf("look again after %v, heard %v", got, !e.unheard)
	}
}

// The kubelet hears of it while nothing is there to be registered, and is not asked over and over if it does not answer.
func TestKubeletHearsOfTheLastEndpointEarly(t *testing.T) {
	e := alone(t)
	e.unheard = true
	e.beHeardEarly(t.Context())
	if e.pause != 0 {
		t.Errorf("without a kubelet.sock: pause %v", e.pause)
	}
	e.looked = false // that kubelet was there before
	gone, err := net.Listen("unix", filepath.Join(e.Dir, kubeletSocket))
	if err != nil {
		t.Fatal(err)
	}
	gone.(*net.UnixListener).SetUnlinkOnClose(false)
	gone.Close()
	e.beHeardEarly(t.Context())
	if e.pause != settlePause || !e.unheard {
		t.Errorf("nobody listens: pause %v, heard %v", e.pause, !e.unheard)
	}
	e.notBefore = e.notBefore.Add(time.Hour) // so that it cannot be over
	if e.beHeardEarly(t.Context()); e.pause != settlePause {
		t.Errorf("at once again: pause %v", e.pause)
	}
	os.Rename(gone.Addr().String(), gone.Addr().String()+".old") // keeps its inode from being used again
	e.looked = false
	answering{}.serve(t, e.Dir)
	if e.beHeardEarly(t.Context()); e.unheard || e.Status().Registered {
		t.Errorf("one that answers: heard %v, status %+v", !e.unheard, e.Status())
	}
}

// Registered with a kubelet that has known another endpoint, we may be ended in its place: it is asked what it counts.
func TestSecondRegistrationIsDoubted(t *testing.T) {
	for _, known := range []bool{false, true} {
		e := alone(t)
		asked := 0
		e.Counted = func(context.Context) ([]string, error) { asked++; return nil, ErrNotCounted }
		answering{}.serve(t, e.Dir)
		e.known = known
		e.converge(t.Context())
		defer e.streams.over(e.streams.begin(int32(os.Getpid()), nil))
		e.rivalry.asked = e.rivalry.asked.Add(-lateInterval)
		if e.converge(t.Context()); !e.Status().Connected || (asked > 0) != known {
			t.Errorf("known %v: status %+v, asked %d times", known, e.Status(), asked)
		}
	}
}

// One that stands still has not heard of it, however long ago that was. The next kubelet knows of nothing.
func TestKubeletThatStandsStillHearsNothing(t *testing.T) {
	e := alone(t)
	still, err := net.Listen("unix", filepath.Join(e.Dir, kubeletSocket)) // where the kernel accepts and nobody answers
	if err != nil {
		t.Fatal(err)
	}
	e.unheard = true
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if got := e.converge(ctx); got != settlePause || !e.unheard || e.Status().Registered {
		t.Errorf("look again after %v, heard %v, status %+v", got, !e.unheard, e.Status())
	}
	still.Close()
	answering{}.serve(t, e.Dir)
	if e.converge(t.Context()); !e.Status().Registered {
		t.Error("not registered with the next one at once")
	}
}

// How long the stream of before lived says nothing of a registration after which none was opened.
func TestPauseAfterNoStream(t *testing.T) {
	e := alone(t)
	e.registered, e.since, e.pause = identity{inode: 1}, time.Now(), settlePause
	e.streams.ended, e.streams.lived = e.since.Add(-time.Minute), time.Hour
	e.afterStream(e.registered)
	if e.pause != 2*settlePause || e.notBefore.Before(e.since.Add(settlePause)) {
		t.Errorf("pause %v, again %v after the registration", e.pause, e.notBefore.Sub(e.since))
	}
}

// A kubelet that is slow to open its stream is told of us less and less often.
func TestRegistrationWithoutAStream(t *testing.T) {
	e := alone(t)
	answering{}.serve(t, e.Dir)
	for i, want := range []time.Duration{settlePause, 2 * settlePause, 4 * settlePause, 8 * settlePause, lastPause} {
		if got := e.converge(t.Context()); got != streamLimit || !e.Status().Registered {
			t.Fatalf("registration %d: look again after %v, status %+v", i+1, got, e.Status())
		}
		e.since = e.since.Add(-streamLimit) // its time is up
		if got := e.converge(t.Context()); got <= 0 || e.pause != want {
			t.Errorf("registration %d: look again after %v, pause %v, want %v", i+1, got, e.pause, want)
		}
		e.registered, e.notBefore = identity{}, time.Now() // as it is, unless the pause was over at once
	}
	// It comes in the pause: the process that has it is the one that was told.
	e.since = e.since.Add(-streamLimit)
	e.converge(t.Context())
	defer e.streams.over(e.streams.begin(int32(os.Getpid()), nil))
	if got := e.converge(t.Context()); got != 0 || e.Status() != (Status{Registered: true, Connected: true}) {
		t.Errorf("with a stream: look again after %v, status %+v", got, e.Status())
	}
}
