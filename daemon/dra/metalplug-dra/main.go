// SPDX-License-Identifier: Apache-2.0

// Command metalplug-dra is the driver for Dynamic Resource Allocation on a node with metalplugd.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/dra"
	"github.com/metalplug/metalplug/internal/commandline"
	"github.com/metalplug/metalplug/systemd"
	"github.com/metalplug/metalplug/systemd/sockets"
)

// The program exits with one of these codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	exitConfig = 78 // EX_CONFIG in sysexits.h; systemd does not restart the unit after this code
)

// version is set at build time for releases.
var version = "unreleased"

const help = `metalplug-dra publishes the devices of metalplugd in ResourceSlices and prepares resource claims, until it is stopped.

It serves the resources with serve = "dra".

Exit codes: 0 success; 1 a part failed; 2 invalid command line; 78 invalid kubeconfig or token.

`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("metalplug-dra", flag.ContinueOnError)
	kubeconfig := flags.String("kubeconfig", "/etc/metalplug-dra/kubeconfig", "`FILE` with the API server and the identity")
	token := flags.String("token", "", "`FILE` with a token; the kubeconfig then gives only the API server")
	impersonate := flags.Bool("impersonate", true, "let the token act as the node (requires Kubernetes 1.36)")
	host, _ := os.Hostname() // the check below refuses an empty name; the kubelet uses lower case
	node := flags.String("node", strings.ToLower(host), "`NAME` of the Node")
	control := flags.String("control", "/run/metalplug/control.sock", "`SOCKET` of metalplugd")
	kubelet := flags.String("kubelet", "/var/lib/kubelet", "root `DIRECTORY` of the kubelet")
	level, code, ok := commandline.Parse(flags, args, help, version, stdout, stderr)
	if !ok {
		return code
	}
	if validation.IsDNS1123Subdomain(*node) != nil {
		fmt.Fprintf(stderr, "metalplug-dra: invalid --node %q: must be the name of a Node, with lower-case letters, digits, \"-\" and \".\"\n"+
			"See 'metalplug-dra --help'.\n", *node)
		return exitUsage
	}
	user := "" // user that the token impersonates
	if *impersonate {
		user = "system:node:" + *node
	}
	used, refused := make(chan struct{}, 1), new(atomic.Bool)
	config, err := identity(*kubeconfig, *token, user, used, refused)
	var kube *kubernetes.Clientset
	if err == nil {
		kube, err = kubernetes.NewForConfig(config)
	}
	if err != nil {
		fmt.Fprintln(stderr, "metalplug-dra:", err)
		return exitConfig
	}
	log := systemd.OpenLog(stderr, level)
	defer log.Close()
	klog.SetSlogLogger(log.Logger)
	who, _ := describeIdentity(config, *node)
	log.Info("identity read", "detail", who)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // this lets a second signal kill the process
	var logged atomic.Bool       // whether the last identity had a flaw
	note := func(problem string) {
		who, flaw := describeIdentity(config, *node)
		if before := logged.Swap(flaw != ""); flaw != "" && !before {
			log.Warn("identity invalid", "reason", flaw)
		}
		report := api.Driver{PID: os.Getpid(), Identity: who}
		report.Problem = fmt.Sprintf("%.1000s", cmp.Or(flaw, problem)) // metalplugd limits the size of a request
		if report.Problem == "" && refused.Load() {
			report.Problem = "the API server refuses the identity"
		}
		_ = systemd.Status(strings.TrimSuffix(who+"; "+report.Problem, "; "))
		ctx, end := context.WithTimeout(ctx, time.Second)
		defer end()
		_ = api.Client{Socket: *control}.Post(ctx, "/v1/driver", report, new(struct{})) // if metalplugd does not answer, doctor reports this
	}
	o := dra.Options{Node: *node, Kube: kube, Control: *control, Kubelet: *kubelet, Log: log.Logger, Note: note, Used: used}
	if passed := sockets.Listeners(); len(passed) > 0 {
		o.Listen = func(_ context.Context, path string) (net.Listener, error) { return passed.Listen(path) }
	}
	if err := dra.Run(ctx, o, func() { _ = systemd.Ready() }); ctx.Err() == nil {
		log.Error("stopped", "err", err)
		return exitFailed
	}
	return exitOK
}
