// SPDX-License-Identifier: Apache-2.0

// Command dra-sanity checks a driver for Dynamic Resource Allocation against the rules on which the kubelet and the scheduler
// rely. It takes the place of the kubelet, so it works with every driver.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

const help = `dra-sanity checks a DRA driver in place of the kubelet. Run it as root on the node of the driver.

It prepares and releases devices that are in no claim. A driver that erases disks erases them. It deletes the ResourceSlices of the
driver on the node once, as each start of the kubelet does. Its claims and pods have names that begin with "dra-sanity-".

Exit codes: 0 no check failed; 1 a check failed, or none was run, or dra-sanity was interrupted; 2 invalid command line, or the API
server does not return the Node.

`

// options are the flags of the command line.
type options struct {
	driver, node, registration, class, namespace string
	cdi                                          []string
	devices                                      *regexp.Regexp
	restart, boot                                string
	timeout, wipe, settle                        time.Duration
}

// result is the outcome of a check. Its detail is the evidence, or the reason.
type result struct{ Check, Outcome, Time, Detail, Rule, Source string }

// The outcomes of a check.
const (
	passed  = "PASS"
	failed  = "FAIL"
	skipped = "SKIP"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	var o options
	name, _ := os.Hostname() // no slices have an empty node name
	flags := flag.NewFlagSet("dra-sanity", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	kubeconfig := flags.String("kubeconfig", os.Getenv("KUBECONFIG"), "`FILE` with the identity of an administrator (default: $KUBECONFIG)")
	flags.StringVar(&o.driver, "driver", "", "`NAME` of the driver")
	flags.StringVar(&o.node, "node", strings.ToLower(name), "`NAME` of the Node")
	flags.StringVar(&o.registration, "registration", "/var/lib/kubelet/plugins_registry", "`DIRECTORY` of the registration sockets")
	dirs := flags.String("cdi", strings.Join(cdi.DefaultSpecDirs, ","), "`DIRECTORIES` of CDI specs, separated by commas")
	flags.StringVar(&o.class, "class", "", "`NAME` of a DeviceClass; its configuration goes into the claims")
	flags.StringVar(&o.namespace, "namespace", "default", "`NAME` of the namespace for claims and pods")
	devices := flags.String("devices", "", "`REGEXP` of the devices that may be used (default: all that are in no claim)")
	flags.StringVar(&o.restart, "restart", "", "`COMMAND` that restarts the driver")
	flags.StringVar(&o.boot, "boot", "", "`COMMAND` that stops the driver, empties its CDI directory, and starts the driver")
	flags.DurationVar(&o.timeout, "timeout", time.Minute, "maximum `TIME` until a request succeeds, which is repeated like the kubelet does")
	flags.DurationVar(&o.wipe, "wipe", time.Minute, "maximum `TIME` until the driver has written deleted slices again")
	flags.DurationVar(&o.settle, "settle", 5*time.Second, "`TIME` after a restart until the slices are compared")
	only := flags.String("run", "", "`REGEXP` of the checks to run (default: all)")
	list := flags.Bool("list", false, "print the checks with their rules and sources, and exit")
	format := flags.String("o", "text", "output `FORMAT`: text or json")
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, help)
		flags.SetOutput(stdout)
		flags.PrintDefaults()
		return exitOK
	}
	chosen, invalidRun := regexp.Compile(*only)
	var invalid error
	o.devices, invalid = regexp.Compile(*devices)
	err = errors.Join(err, invalidRun, invalid)
	switch {
	case err != nil:
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument: %q", flags.Arg(0))
	case *format != "text" && *format != "json":
		err = fmt.Errorf("invalid -o %q: must be text or json", *format)
	case o.driver == "" && !*list:
		err = errors.New("missing flag: --driver")
	}
	s := &sanity{options: o, prefix: fmt.Sprintf("dra-sanity-%x-", time.Now().UnixNano()), shared: make(map[device]capacity)}
	s.cdi = strings.Split(*dirs, ",")
	if err == nil && !*list {
		s.kube, err = connect(*kubeconfig)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err == nil && !*list {
		if _, err = s.kube.CoreV1().Nodes().Get(ctx, o.node, metav1.GetOptions{}); err != nil {
			err = fmt.Errorf("read the Node of --node: %w", err)
		}
	}
	if err != nil {
		fmt.Fprintf(stderr, "dra-sanity: %v\nSee 'dra-sanity --help'.\n", err)
		return exitUsage
	}
	if *list {
		for _, c := range checks {
			fmt.Fprintf(stdout, "%s\n\t%s\n\t%s\n", c.name, c.rule, c.source)
		}
		return exitOK
	}
	return s.report(ctx, chosen, *format == "json", stdout)
}

func connect(kubeconfig string) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // no limit
	return kubernetes.NewForConfig(config)
}

// report runs the chosen checks and prints their results. It returns the exit code.
func (s *sanity) report(ctx context.Context, chosen *regexp.Regexp, asJSON bool, stdout io.Writer) int {
	defer s.disconnect()
	var all []result
	count := make(map[string]int)
	for _, c := range checks {
		if !chosen.MatchString(c.name) || ctx.Err() != nil {
			continue
		}
		began := time.Now()
		r := result{Check: c.name, Rule: c.rule, Source: c.source}
		r.Outcome, r.Detail = s.try(ctx, c)
		if ctx.Err() != nil {
			r.Outcome, r.Detail = skipped, "interrupted"
		}
		r.Time = fmt.Sprintf("%.2f s", time.Since(began).Seconds())
		count[r.Outcome]++
		all = append(all, r)
		if asJSON {
			continue
		}
		fmt.Fprintf(stdout, "%s  %-22s %8s  %s\n", r.Outcome, r.Check, r.Time, r.Detail)
		if r.Outcome == failed {
			fmt.Fprintf(stdout, "      rule: %s\n      source: %s\n", r.Rule, r.Source)
		}
	}
	if asJSON {
		text, _ := json.MarshalIndent(all, "", "  ") // never fails for strings
		fmt.Fprintf(stdout, "%s\n", text)
	} else {
		fmt.Fprintf(stdout, "%s on %s: %d passed, %d failed, %d skipped\n", s.driver, s.node, count[passed], count[failed], count[skipped])
	}
	if count[failed] > 0 || len(all) == 0 || ctx.Err() != nil {
		return exitFailed
	}
	return exitOK
}
