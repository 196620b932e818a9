// SPDX-License-Identifier: Apache-2.0

// Up starts a cluster of two nodes with metalplugd on recorded hardware, and prints how to use the cluster. Ctrl-C ends the
// cluster.
//
//	up --dir DIR --programs DIR --release v1.36 RECORDING...
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/metalplug/metalplug/integration/cluster"
)

func main() {
	dir := flag.String("dir", "/tmp/metalplug-cluster", "`DIR` for all files, which is new and is removed at the end")
	programs := flag.String("programs", "bin", "`DIR` of metalplugd and of cluster/")
	release := flag.String("release", "v1.36", "`RELEASE` of Kubernetes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *dir, *programs, *release, flag.Args()); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "up:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir, programs, release string, recordings []string) (err error) {
	began := time.Now()
	programs, err = filepath.Abs(programs)
	if err != nil {
		return err
	}
	var hardware []string
	for _, file := range recordings {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		hardware = append(hardware, string(text))
	}
	c, err := cluster.Start(ctx, cluster.Options{
		Dir:      dir,
		Programs: programs,
		Release:  release,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	fmt.Printf("%5.1f s  control plane\n", time.Since(began).Seconds())
	for i, recording := range hardware {
		name := fmt.Sprintf("node%d", i+1)
		if _, err := c.StartNode(ctx, cluster.NodeOptions{Name: name, Recording: recording}); err != nil {
			return fmt.Errorf("start %s with %s: %w", name, recordings[i], err)
		}
		fmt.Printf("%5.1f s  %s with %s\n", time.Since(began).Seconds(), name, filepath.Base(recordings[i]))
	}
	if err := os.Symlink(filepath.Join(programs, "cluster", "kubectl-"+release), c.File("kubectl")); err != nil {
		return err
	}
	fmt.Printf(usage, c.File(""), c.File("admin.kubeconfig"), c.File("node1"), programs)
	<-ctx.Done()
	return nil
}

const usage = `
In another terminal:

    export PATH=%[1]s:$PATH KUBECONFIG=%[2]s
    kubectl describe node node1
    kubectl get pods -A --watch

A container whose command is a path, such as /bin/sh, runs on this machine as root, with all its files. All other containers
run no program. kubectl logs POD shows the devices that a container got, and the pod stays Running. With the command
["exit", "0"] it ends at once. The programs of a node write their logs to %[3]s/*.log.
To unplug a device, delete its paragraph in %[3]s/var/hardware/recording and save the file. To plug
it in, put the paragraph back. The PCI_SLOT_NAME of a GPU shows which paragraph it is. metalplugctl on a node is

    export METALPLUG_SOCKET=%[3]s/run/metalplug/control.sock
    %[4]s/metalplugctl list

Ctrl-C ends everything and removes the files.
`
