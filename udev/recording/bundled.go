// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"embed"
	"path"
	"strings"
)

//go:embed bundled/*.umockdev
var bundled embed.FS

// BundledFile is a recording that comes with the program.
type BundledFile struct {
	Name  string // name of the file without its extension, such as "nvme-blank"
	Title string // title from the comment "title" at the start of the text
	Text  []byte // text for [Parse]; the caller may modify it
}

// Bundled lists the recordings that come with the program, sorted by name.
func Bundled() []BundledFile {
	entries, _ := bundled.ReadDir("bundled") // reading embedded files cannot fail
	list := make([]BundledFile, len(entries))
	for i, entry := range entries {
		text, _ := bundled.ReadFile(path.Join("bundled", entry.Name()))
		first, _, _ := strings.Cut(string(text), "\n")
		title, _ := strings.CutPrefix(first, "# title:")
		list[i] = BundledFile{strings.TrimSuffix(entry.Name(), ".umockdev"), strings.TrimSpace(title), text}
	}
	return list
}
