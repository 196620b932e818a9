// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// The parts of an SPDX 2.3 document that are used here.
type (
	document struct {
		Version       string         `json:"spdxVersion"`
		License       string         `json:"dataLicense"`
		ID            string         `json:"SPDXID"`
		Name          string         `json:"name"`
		Namespace     string         `json:"documentNamespace"`
		Creation      creation       `json:"creationInfo"`
		Packages      []component    `json:"packages"`
		Relationships []relationship `json:"relationships"`
	}
	creation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	component struct {
		Name      string      `json:"name"`
		ID        string      `json:"SPDXID"`
		Version   string      `json:"versionInfo"`
		Location  string      `json:"downloadLocation"`
		Analyzed  bool        `json:"filesAnalyzed"`
		Concluded string      `json:"licenseConcluded"`
		Declared  string      `json:"licenseDeclared"`
		Copyright string      `json:"copyrightText"`
		File      string      `json:"packageFileName,omitempty"`
		Checksums []checksum  `json:"checksums,omitempty"`
		Comment   string      `json:"comment,omitempty"`
		Refs      []reference `json:"externalRefs,omitempty"`
	}
	checksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	reference struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	relationship struct {
		From string `json:"spdxElementId"`
		Kind string `json:"relationshipType"`
		To   string `json:"relatedSpdxElement"`
	}
)

const home = "https://github.com/metalplug/metalplug"

// describe returns the document: the package, its programs, and what each of them contains.
func describe(version string, at time.Time, programs []program, modules []*module) (document, error) {
	d := document{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: "metalplug-" + version,
		Creation: creation{Created: at.Format(time.RFC3339), Creators: []string{"Tool: metalplug-sbom"}},
	}
	whole := part("metalplug", version, "Apache-2.0")
	whole.Location = "git+" + home
	d.Packages = append(d.Packages, whole)
	d.relate(d.ID, "DESCRIBES", whole.ID)
	sums := sha256.New()
	for _, p := range programs {
		c := part(filepath.Base(p.file), version, "Apache-2.0")
		text, err := os.ReadFile(p.file)
		if err != nil {
			return document{}, fmt.Errorf("read %s: %w", p.file, err)
		}
		sum := sha256.Sum256(text)
		sums.Write(sum[:])
		c.File = c.Name
		c.Checksums = []checksum{{"SHA256", hex.EncodeToString(sum[:])}}
		d.Packages = append(d.Packages, c)
		d.relate(whole.ID, "CONTAINS", c.ID)
		d.relate(c.ID, "CONTAINS", identifier("go", strings.TrimPrefix(p.GoVersion, "go")))
		for _, m := range p.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			d.relate(c.ID, "CONTAINS", identifier(m.Path, m.Version))
		}
	}
	language := part("go", strings.TrimPrefix(programs[0].GoVersion, "go"), "BSD-3-Clause")
	language.Comment = "the runtime and the standard library"
	d.Packages = append(d.Packages, language)
	for _, m := range modules {
		c := part(m.path, m.version, m.licence)
		c.Comment = "go.sum: " + m.sum
		c.Refs = []reference{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + m.path + "@" + m.version}}
		d.Packages = append(d.Packages, c)
	}
	d.Namespace = home + "/spdx/" + version + "/" + hex.EncodeToString(sums.Sum(nil)[:16])
	return d, nil
}

func (d *document) relate(from, kind, to string) {
	d.Relationships = append(d.Relationships, relationship{from, kind, to})
}

func part(name, version, licence string) component {
	return component{
		Name: name, ID: identifier(name, version), Version: version, Location: "NOASSERTION",
		Concluded: "NOASSERTION", Declared: licence, Copyright: "NOASSERTION",
	}
}

// identifier returns the SPDXID of a package, which has only letters, digits, "." and "-".
func identifier(name, version string) string {
	return "SPDXRef-" + regexp.MustCompile(`[^A-Za-z0-9.-]`).ReplaceAllString(name+"-"+version, "-")
}
