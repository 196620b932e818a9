// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"reflect"
	"testing"

	"github.com/metalplug/metalplug/daemon/config"
)

func TestDoctorLooksForUnits(t *testing.T) {
	with := config.Config{Resources: []config.Resource{{Units: config.Units{Init: "b@.service", Release: "a@.service"}}}}
	missing := func(_ context.Context, templates ...string) []string { return []string{templates[0] + " is missing"} }
	none := func(context.Context, ...string) []string { return nil }
	for _, c := range []struct {
		name   string
		config config.Config
		units  func(context.Context, ...string) []string
		want   []finding
	}{
		{"no resource has any", config.Config{}, missing, nil},
		{"they are there", with, none, []finding{{Level: levelOK, Check: "units", Text: "a@.service, b@.service"}}},
		{"one is missing", with, missing, []finding{{
			Level: levelFail, Check: "units", Text: "a@.service is missing",
			Remedy: "install it, then: systemctl daemon-reload; or take it out of [resource.units]",
		}}},
	} {
		d := doctor{ctx: t.Context(), config: c.config, units: c.units}
		if got := d.checkUnits(); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestCheckWarns(t *testing.T) {
	s := newScreen(&bytes.Buffer{})
	s.checked(checkedFiles{Files: []string{"m.toml"}, Warnings: []string{"the unit a@.service is missing"}})
	if got, want := s.String(), "m.toml: ok\nwarning: the unit a@.service is missing\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
