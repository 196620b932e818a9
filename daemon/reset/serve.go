// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/daemon/sysfs"
)

// Serve reads one request from standard input and answers it. Even if the device hangs, Serve returns at most 2 s after the
// request's time limit. The parameter file is the configuration file.
func Serve(file string) error { return exchange.Serve(newHost(file).reply) }

// newHost returns the host for this machine, with the configuration in the given file.
func newHost(file string) *host {
	h := &host{Tree: sysfs.At(""), kernel: theKernel(), run: "/run", holders: askHolders}
	h.settings = func() (config.Config, error) { return config.Load(file) } // the file may change during a long request
	h.selects = h.checkSelected
	// If systemd has created a directory for this program, RUNTIME_DIRECTORY= names it (systemd.exec(5)). A child process of
	// metalplugd uses a directory below the configured run directory instead, because metalplugd can write there.
	if h.locks = os.Getenv("RUNTIME_DIRECTORY"); h.locks == "" {
		c, err := h.settings()
		if err != nil { // a probe needs no configuration
			c = config.Default()
		}
		h.locks = filepath.Join(c.Paths.Run, "locks")
	}
	return h
}

// step contains the name of the current step. The message "... cannot be interrupted and continues" shows this name.
type step struct{ text atomic.Value }

func (s *step) set(format string, args ...any) { s.text.Store(fmt.Sprintf(format, args...)) }

// String returns the name of the current step. Before the first step, the helper inspects the device.
func (s *step) String() string {
	if text, ok := s.text.Load().(string); ok {
		return text
	}
	return "inspecting the device"
}

// reply returns the answer to a request. The context "asked" ends when the client disconnects. When the context ends, a request
// that only reads the device stops. If a system call does not return in time, the answer is [Late], or [Failed] for a prepare
// request. Such a system call cannot be interrupted. The process can exit and close the device only after the call has returned.
func (h *host) reply(asked context.Context, _ int, message []byte) []byte {
	r, err := ParseRequest(message)
	if err != nil {
		return Answer{Result: Malformed, Detail: err.Error()}.Encode()
	}
	if r.Do == Prepare {
		asked = context.WithoutCancel(asked)
	}
	ctx, cancel := context.WithTimeout(asked, r.Timeout())
	defer cancel()
	done := make(chan Answer, 1)
	go func() { done <- (&task{host: h, Request: r}).attempt(ctx) }()
	var a Answer
	select {
	case a = <-done:
	case <-time.After(r.Timeout() + grace):
		a.Detail = fmt.Sprintf("no result after %v: %s cannot be interrupted and continues", r.Timeout(), &h.step)
		if a.Result = Late; r.Do == Prepare {
			a.Result, a.Detail = Failed, a.Detail+"; allow more time"
		}
	}
	return a.Encode()
}

// task is a request in progress.
type task struct {
	*host
	Request
	answer Answer // the parts of the answer that are known so far
	// seq is the disk's diskseq when the task selected or first opened it, or 0 if unknown. Every later open must find this diskseq.
	seq uint64
}

// attempt carries out the request and returns the answer.
func (t *task) attempt(ctx context.Context) Answer {
	a := &t.answer
	a.Result = OK
	if err := t.do(ctx); err != nil {
		a.Result, a.Detail = resultOf(err), err.Error()
		a.Erased, a.Appearance = false, ""
	}
	if a.Result == Late && t.Do == Prepare {
		a.Result = Failed
	}
	return *a
}

// resultOf returns the result that an error wraps. If it wraps no result, resultOf returns [Gone] for an errno of an
// absent device, and otherwise [Failed].
func resultOf(err error) Result {
	var r Result
	switch {
	case errors.As(err, &r):
		return r
	case errors.Is(err, sysfs.ErrGone), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return Gone
	}
	return Failed
}

// do carries out the request and adds its results to the answer.
func (t *task) do(ctx context.Context) error {
	if err := t.find(); err != nil {
		return err
	}
	disk := t.isDisk(t.SysPath)
	switch {
	case len(t.Identity) == 0 && (t.Do == Survey || t.Do == Prepare):
		return errorf(Refused, "%s: nothing in the request identifies the device", t.SysPath)
	case disk || t.Do == Prepare:
	case t.Do == Survey:
		return errorf(Refused, "%s is not a disk, so it cannot be read", t.SysPath)
	default: // opening the node could disturb a process, or could reset the device (afu_release in drivers/fpga/dfl-afu-main.c)
		return nil
	}
	if t.Do == Look {
		return t.probe(ctx)
	}
	unlock, err := t.lockDevice(ctx, t.SysPath)
	// The lock may belong to an earlier request that is hanging in the kernel. Such a request does not mean that the disk is in use.
	if errors.Is(err, Busy) && t.Do != Prepare {
		return errorf(Late, "%w", err)
	} else if err != nil {
		return err
	}
	defer unlock()
	switch t.Do {
	case Prepare:
		return t.prepare(ctx)
	case Survey:
		return t.survey(ctx)
	}
	return t.probe(ctx)
}

// pause waits for the duration d. If ctx ends first, pause returns false immediately.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// A lock ensures that only one request at a time works on a device. The lock is a file in a directory that all instances of the
// program share. A lock on the device's sysfs directory would not work, for two reasons. Since systemd 254, each instance has its
// own sysfs (PrivateNetwork=, MOUNT_PRIVATE_SYSFS in namespace.c). A lock in this sysfs would not stop the other instances. Also,
// any local process can lock a directory in sysfs.

// deviceLockLimit is how long the helper waits for another instance to release the lock. An instance exits within this time after
// its client has disconnected.
const deviceLockLimit = time.Second

// lockDevice waits until no other instance is working on a device, and then locks the device. Other instances wait until the
// caller calls unlock. If another instance does not release its lock in time, the error is [Busy]. Processes of other users
// cannot open the lock file, so they cannot lock it.
func (h *host) lockDevice(ctx context.Context, sysPath string) (unlock func(), err error) {
	file := lockFile(h.locks, sysPath)
	fd := -1
	if err = os.MkdirAll(h.locks, 0o700); err == nil {
		fd, err = unix.Open(file, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	}
	if err != nil {
		return nil, errorf(Failed, "open the lock %s of %s: %w", file, sysPath, err)
	}
	if waitForLock(ctx, unix.Flock, fd, unix.LOCK_EX, deviceLockLimit) != nil {
		unix.Close(fd)
		return nil, errorf(Busy, "another request for %s is in progress", sysPath)
	}
	return func() { unix.Close(fd) }, nil
}

// lockFile returns the path of the lock file for a device. The name is a hash, because a device's path may be too long for a file
// name.
func lockFile(dir, sysPath string) string {
	sum := sha256.Sum256([]byte(sysPath))
	return filepath.Join(dir, hex.EncodeToString(sum[:16]))
}

// waitForLock locks an open file with LOCK_SH or LOCK_EX. If another process has the lock, waitForLock retries until this process
// releases the lock, but no longer than the given limit. With LOCK_NB, flock otherwise fails only if the kernel lacks memory, so the
// callers report each error as [Busy].
func waitForLock(ctx context.Context, flock func(fd, how int) error, fd, how int, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := flock(fd, how|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || !pause(ctx, 20*time.Millisecond) {
			return err
		}
	}
}
