// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// built builds a small program of this module that has outside modules.
func built(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "completion")
	if out, err := exec.Command("go", "build", "-o", file, "../completion").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return file
}

func TestDocument(t *testing.T) {
	file := built(t)
	var out, again bytes.Buffer
	for _, w := range []*bytes.Buffer{&out, &again} {
		if err := run([]string{"-version", "1.2.3", file}, "1700000000", w); err != nil {
			t.Fatal(err)
		}
	}
	if out.String() != again.String() {
		t.Error("a second run prints something else")
	}
	var d document
	if err := json.Unmarshal(out.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	if d.Creation.Created != "2023-11-14T22:13:20Z" || d.Name != "metalplug-1.2.3" {
		t.Errorf("made %s, name %s", d.Creation.Created, d.Name)
	}
	known := []string{d.ID}
	licences := make(map[string]string)
	for _, p := range d.Packages {
		if slices.Contains(known, p.ID) {
			t.Errorf("%s is there twice", p.ID)
		}
		known = append(known, p.ID)
		licences[p.Name] = p.Declared
	}
	for _, r := range d.Relationships {
		if !slices.Contains(known, r.From) || !slices.Contains(known, r.To) {
			t.Errorf("%v names what is not there", r)
		}
	}
	for name, want := range map[string]string{
		"metalplug": "Apache-2.0", "completion": "Apache-2.0", "go": "BSD-3-Clause",
		"github.com/spf13/cobra": "Apache-2.0", "github.com/spf13/pflag": "BSD-3-Clause",
	} {
		if licences[name] != want {
			t.Errorf("%s: licence %q, want %q", name, licences[name], want)
		}
	}
}

func TestNotices(t *testing.T) {
	var out bytes.Buffer
	if err := run([]string{"-notices", built(t)}, "0", &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"github.com/spf13/pflag v", "Redistributions of source code must retain", "Apache License"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing", want)
		}
	}
}

func TestRecognise(t *testing.T) {
	tests := []struct {
		name  string
		texts []string
		want  string
	}{
		{"none", nil, "NOASSERTION"},
		{"unknown", []string{"Do what you want."}, "NOASSERTION"},
		{"broken lines", []string{"Apache License\n   Version 2.0, January 2004\n"}, "Apache-2.0"},
		{"a notice beside", []string{"Apache License Version 2.0, January 2004", "Copyright somebody"}, "Apache-2.0"},
		{"MIT", []string{"Permission is hereby granted, free of charge, to any person obtaining a copy of this software"}, "MIT"},
		{"two", []string{
			"Permission is hereby granted, free of charge, to any person obtaining a copy of this software",
			"Apache License Version 2.0, January 2004",
		}, "Apache-2.0 AND MIT"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := recognise(test.texts); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

func TestRefuses(t *testing.T) {
	noGo := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(noGo, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		args  []string
		epoch string
	}{
		"no program":    {nil, "0"},
		"no time":       {[]string{noGo}, ""},
		"no Go program": {[]string{noGo}, "0"},
		"no such file":  {[]string{noGo + "-not"}, "0"},
		"unknown flag":  {[]string{"-nonsense", noGo}, "0"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if err := run(test.args, test.epoch, &bytes.Buffer{}); err == nil {
				t.Error("no error")
			}
		})
	}
}
