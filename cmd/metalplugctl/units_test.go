// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/systemd"
)

func TestDoctorLooksForUnits(t *testing.T) {
	with := config.Config{Resources: []config.Resource{{Units: config.Units{Init: "b@.service", Release: "a@.service"}}}}
	says := func(err error, unusable ...systemd.Unusable) func(context.Context, ...string) ([]systemd.Unusable, error) {
		return func(context.Context, ...string) ([]systemd.Unusable, error) { return unusable, err }
	}
	for _, c := range []struct {
		name   string
		config config.Config
		units  func(context.Context, ...string) ([]systemd.Unusable, error)
		want   []finding
	}{
		{"no resource has any", config.Config{}, says(errors.New("it was asked")), nil},
		{"they are there", with, says(nil), []finding{{Level: levelOK, Check: "units", Text: "a@.service, b@.service"}}},
		{"one is missing, one masked", with, says(nil, systemd.Unusable{Template: "a@.service"}, systemd.Unusable{Template: "b@.service", Masked: true}), []finding{
			{
				Level: levelFail, Check: "units", Text: "the unit a@.service is missing on this machine: what it is to do is not done",
				Remedy: "install it, then: systemctl daemon-reload; or take it out of [resource.units]",
			},
			{
				Level: levelFail, Check: "units", Text: "the unit b@.service is masked on this machine: what it is to do is not done",
				Remedy: "systemctl unmask b@.service; or take it out of [resource.units]",
			},
		}},
		{"systemd does not answer", with, says(errors.New("connect to systemd: nobody")), []finding{{
			Level: levelSkip, Check: "units", Text: "not checked: connect to systemd: nobody",
			Remedy: "systemctl list-unit-files a@.service b@.service",
		}}},
		{"systemd does not run", with, nil, []finding{{
			Level: levelSkip, Check: "units", Text: "not checked: systemd does not run here", Remedy: "see whether there are a@.service, b@.service",
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
