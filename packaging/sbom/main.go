// SPDX-License-Identifier: Apache-2.0

// Command sbom prints what programs are made of, as SPDX 2.3 in JSON (https://spdx.github.io/spdx-spec/v2.3), from what
// the Go linker has written into them. With -notices it prints the licences of the modules instead, in full.
//
// SOURCE_DATE_EPOCH (https://reproducible-builds.org/specs/source-date-epoch) is the time that it was made at: the same
// programs give the same bytes.
package main

import (
	"debug/buildinfo"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"
)

func main() {
	if err := run(os.Args[1:], os.Getenv("SOURCE_DATE_EPOCH"), os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "sbom: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string, epoch string, w io.Writer) error {
	flags := flag.NewFlagSet("sbom", flag.ContinueOnError)
	version := flags.String("version", "unreleased", "`VERSION` of the package")
	notices := flags.Bool("notices", false, "print the licences of the modules")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return fmt.Errorf("name the programs")
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return fmt.Errorf("read SOURCE_DATE_EPOCH: %w", err)
	}
	var programs []program
	for _, file := range flags.Args() {
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read the build of %s: %w", file, err)
		}
		programs = append(programs, program{file, info})
	}
	modules := modules(programs)
	if err := findLicences(modules); err != nil {
		return err
	}
	if *notices {
		return writeNotices(w, modules)
	}
	document, err := describe(*version, time.Unix(seconds, 0).UTC(), programs, modules)
	if err != nil {
		return err
	}
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	out.SetEscapeHTML(false)
	return out.Encode(document)
}
