// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/metalplug/metalplug/internal/fsutil"
	"github.com/spf13/cobra"
)

// directoryFor creates a directory for a preview. The preview removes the directory when it ends. If name is empty, the directory
// is temporary. Otherwise, the named directory must not exist yet.
func directoryFor(name string) (dir string, err error) {
	if name == "" {
		if dir, err = os.MkdirTemp("", "metalplug-"); err != nil {
			return "", fmt.Errorf("create a temporary directory: %w; set TMPDIR", err)
		}
		return dir, nil
	}
	if dir, err = filepath.Abs(name); err != nil {
		return "", err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", fmt.Errorf("serve in %s: %w; name a new directory", dir, fsutil.Cause(err))
	}
	return dir, nil
}

// daemonFile returns the path of metalplugd. daemonFile first looks in the directory of this program, and then where the package
// installs metalplugd.
func daemonFile() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(self)
	for _, file := range []string{filepath.Join(dir, "metalplugd"), filepath.Join(dir, "../sbin/metalplugd")} {
		if _, err := os.Stat(file); err == nil {
			return file, nil
		}
	}
	return "", fmt.Errorf("metalplugd not found in %s or %s", dir, filepath.Join(dir, "../sbin"))
}

// run runs metalplugd until the function "show" returns or the command ends. run calls show when the resources are registered and
// the containers have their devices. The options for show contain the socket of this metalplugd.
func (p *preview) run(cmd *cobra.Command, show func(*clientOptions) error) error {
	file, err := daemonFile()
	if err != nil {
		return err
	}
	dir, err := directoryFor(p.serve)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	p.Dir = dir
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	child := exec.Command(file, "--preview", "--config", p.file, "--log-level", p.logLevel)
	child.Stderr = cmd.ErrOrStderr()
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C must not reach metalplugd, because this program stops it
	in, inErr := child.StdinPipe()
	out, outErr := child.StdoutPipe()
	if err := errors.Join(inErr, outErr); err != nil {
		return err
	}
	if err := child.Start(); err != nil {
		return fmt.Errorf("start metalplugd: %w", err)
	}
	context.AfterFunc(ctx, func() { in.Close() }) // metalplugd exits when its input is closed
	err = json.NewEncoder(in).Encode(p.Preview)
	if err == nil {
		err = json.NewDecoder(out).Decode(&p.Preview)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- child.Wait()
		cancel()
	}()
	switch {
	// The command was interrupted, or metalplugd has printed the reason on standard error.
	case cmd.Context().Err() != nil || errors.Is(err, io.EOF):
		err = nil
	case err == nil && p.Error != "":
		err = errors.New(p.Error)
	case err == nil:
		cmd.SetContext(ctx)
		err = show(&clientOptions{socket: filepath.Join(dir, "control.sock")})
	}
	cancel()
	if end := <-ended; end != nil && err == nil {
		err = fmt.Errorf("metalplugd: %w", end)
	}
	return err
}
