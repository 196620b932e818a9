// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/plugin"
)

// Which endpoints are told that another one has served their resource.
func TestFollowers(t *testing.T) {
	for _, second := range []bool{false, true} {
		e := &endpoints{running: make(map[string]*running), served: make(map[string]bool), ctx: t.Context()}
		if second {
			e.last = time.Now()
		}
		e.failed, e.changed = make(chan error, 1), make(chan struct{}, 1)
		e.make = func(r config.Resource) *plugin.Endpoint {
			dir := strings.Repeat("x", 200) // too long for a socket, so that it does not run
			return &plugin.Endpoint{Resource: plugin.Resource{Name: r.Name}, Dir: dir, Log: slog.New(slog.DiscardHandler)}
		}
		for i, step := range []struct{ resources, follow string }{
			{"a", ""}, {"a b", ""}, {"b", ""}, {"a b", "a"}, {"", ""}, {"a b c", "a b"},
		} {
			var resources []config.Resource
			for _, name := range strings.Fields(step.resources) {
				resources = append(resources, config.Resource{Name: name})
			}
			before := e.all()
			e.apply(resources, func() {})
			for name, endpoint := range e.all() {
				want := second || slices.Contains(strings.Fields(step.follow), name)
				if endpoint != before[name] && !endpoint.Before.IsZero() != want {
					t.Errorf("a second daemon %v, step %d: %s follows another: %v", second, i+1, name, !want)
				}
			}
		}
		e.stopAll()
	}
}
