// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/metalplug/metalplug/udev/recording"
)

// Load reads a configuration file, and after it the drop-ins conf.d/*.toml in the same directory, sorted by name. A key in a
// later file replaces the earlier value. A [[resource]] with the same name as an earlier or built-in resource overrides that
// resource key by key. The tables match, exclude and env are each replaced as a whole. The resources in the files come first, in
// file order, followed by the other built-in resources. The file must exist unless it is [DefaultFile]. Any error is a
// [Problems]. After an error, the returned Config still contains the file names.
func Load(file string) (Config, error) {
	if file == "" {
		return Config{}, Problems{{File: `""`, What: "the name of the file is empty; name a file, or omit it to use " + DefaultFile}}
	}
	return load(file, file == DefaultFile)
}

// load does the work of Load. The main file may be missing if the parameter "optional" is true.
func load(main string, optional bool) (Config, error) {
	dir, _ := filepath.Abs(filepath.Dir(main)) // if this fails, the working directory was removed, and reading the file fails too
	var files []*file
	if _, err := os.Lstat(main); !optional || !errors.Is(err, fs.ErrNotExist) {
		files = append(files, readFile(main))
	}
	names, err := dropIns(filepath.Join(filepath.Dir(main), "conf.d"))
	if err != nil {
		files = append(files, &file{problems: Problems{readProblem(filepath.Join(filepath.Dir(main), "conf.d"), err)}})
	}
	for _, name := range names {
		files = append(files, readFile(name))
	}
	c := staticDefaults()
	if problems := c.apply(dir, files...); len(problems) > 0 {
		return Config{Files: c.Files}, problems
	}
	return c, nil
}

// EnvValues returns the values in every env table in a file's text, even if the configuration is invalid. EnvValues returns an
// error if the text is not TOML.
func EnvValues(text string) (values []string, err error) {
	var tree map[string]any
	_, err = toml.Decode(text, &tree)
	var collect func(of any, inEnv bool)
	collect = func(of any, inEnv bool) {
		switch of := of.(type) {
		case string:
			if inEnv {
				values = append(values, of)
			}
		case map[string]any:
			for key, value := range of {
				collect(value, inEnv || key == "env")
			}
		case []map[string]any:
			for _, value := range of {
				collect(value, inEnv)
			}
		case []any:
			for _, value := range of {
				collect(value, inEnv)
			}
		}
	}
	collect(tree, false)
	return values, err
}

// LoadUsable is like [Load], but also returns an error if the recording that the configuration names cannot be read. Without this
// recording, a daemon cannot start. The error is from [Config.Unusable].
func LoadUsable(file string) (Config, error) {
	c, err := Load(file)
	if err != nil || c.Hardware.Recording == "" {
		return c, err
	}
	if err := recording.Check(c.Hardware.Recording); err != nil {
		return c, c.Unusable(err)
	}
	return c, nil
}

// Unusable returns an error about the recording as a [Problems] with the line that names the recording.
func (c Config) Unusable(err error) error {
	problem := c.source
	problem.What = err.Error()
	return Problems{problem}
}

// readProblem returns the problem to report for a file that cannot be read. The message does not repeat the file's name.
func readProblem(name string, err error) Problem {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		err = fmt.Errorf("%s: %w", pathError.Op, pathError.Err)
	}
	return Problem{File: name, What: err.Error()}
}

// dropIns returns the sorted drop-in files in a directory, or nil if the directory is missing.
func dropIns(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".toml") && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, filepath.Join(dir, e.Name()))
		}
	}
	return names, err
}

// readFile reads and parses a file. A drop-in may be a link to /dev/null, which is empty.
func readFile(name string) *file {
	null, _ := os.Stat(os.DevNull) // SameFile returns false for nil
	info, err := os.Stat(name)
	if err == nil && !info.Mode().IsRegular() && !os.SameFile(info, null) {
		return &file{name: name, problems: Problems{{File: name, What: "is not a regular file; name a file such as " + DefaultFile}}}
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return &file{name: name, problems: Problems{readProblem(name, err)}}
	}
	return parse(name, strings.ReplaceAll(string(text), "\r\n", "\n"))
}

// parse parses a file's text. If the text is not TOML, the result contains one problem and no settings.
func parse(name, text string) *file {
	var tree map[string]any
	meta, err := toml.Decode(text, &tree)
	if err != nil {
		return &file{name: name, problems: Problems{syntaxProblem(name, err)}}
	}
	resources := tree[resourceKey]
	delete(tree, resourceKey)
	return &file{name: name, tree: tree, resources: resources, lines: newLineIndex(keyLines(text), meta.Keys())}
}

// apply sets c from all files, and returns the problems, sorted by file and line. The path of a recording may be relative to
// dir.
func (c *Config) apply(dir string, files ...*file) (problems Problems) {
	root := &table{}
	for _, f := range files {
		c.Files = append(c.Files, f.name)
		if f.problems == nil {
			root.merge(place{file: f}, f.tree)
		}
	}
	takePaths(root.table("paths"), c)
	takeHardware(root.table("hardware"), c, dir)
	takeHelpers(root.table("reset"), &c.Reset)
	builtin := true
	root.boolean("builtin", &builtin)
	c.takeResources(files, builtin)
	for _, f := range files {
		slices.SortStableFunc(f.problems, func(a, b Problem) int { return a.Line - b.Line })
		problems = append(problems, f.problems...)
	}
	return problems
}

// tomlRemedy shows TOML syntax, which has neither YAML's "key: value" nor JSON's braces.
const tomlRemedy = `; in TOML, write key = "text", key = 1 or key = true below [NAME] or [[resource]], and a key such as "ATTR{size}" in quotes`

// syntaxProblem returns the first problem in a file that is not TOML. The text after this problem cannot be parsed reliably.
func syntaxProblem(name string, err error) Problem {
	parseError, _ := errors.AsType[toml.ParseError](err) // FuzzLines checks that every error of the parser has this type
	return Problem{
		File: name,
		// If a file with one line ends too early, the parser returns line 0. If a line ends too early, the parser returns the
		// number of the next line.
		Line: max(1, parseError.Position.Line-strings.Count(parseError.Message, "got '\\n'")),
		Key:  oneLine(parseError.LastKey),
		What: strings.TrimSuffix(oneLine(parseError.Message), ".") + tomlRemedy,
	}
}

// file is a configuration file that is being read.
type file struct {
	name      string
	tree      map[string]any // the parsed file
	resources any            // the value of the key resource, which is not in tree
	lines     lineIndex
	problems  Problems
}

// spelling returns the path of a key as it is written in a file.
func spelling(path toml.Key) string { return withoutIndex(path).String() }

// withoutIndex returns the path of a key without the index of the resource table.
func withoutIndex(path toml.Key) toml.Key {
	if len(path) > 1 && path[0] == resourceKey {
		return append(toml.Key{resourceKey}, path[2:]...)
	}
	return path
}

// checkKnown reports a key that is not in the map exampleValues, and suggests a known key. checkKnown ignores keys in the tables
// match, exclude and env, because these keys are names of properties and variables.
func (p place) checkKnown() {
	path := withoutIndex(p.path)
	if _, ok := exampleValues[path.String()]; ok {
		return
	}
	siblings := siblingKeys(path)
	if len(siblings) == 0 {
		return
	}
	switch meant := suggestKey(path, siblings); {
	case meant == "":
		p.reportf("unknown key; valid keys are %s", strings.Join(siblings, ", "))
	case strings.Contains(meant, " "):
		p.reportf("unknown key; %s", meant)
	case meant == path[len(path)-1]: // the known key belongs above the first table
		p.reportf("unknown key; write %s above the first table", meant)
	default:
		p.reportf("unknown key; did you mean %s?", meant)
	}
}

// keyReplacements lists other programs' keys that users may try here, with their replacements.
var keyReplacements = map[string]string{
	"log_level": "use metalplugd --log-level", "loglevel": "use metalplugd --log-level", "log": "use metalplugd --log-level", "metrics": "metalplugd-metrics.socket",
	"replicas": "shares", "sharing": "shares", "time_slicing": "shares", "devices": "match.METALPLUG_ID", "device_ids": "match.METALPLUG_ID",
	"kubelet_root": "device_plugins", "root_dir": "paths.device_plugins", "scrub": "resource.reset.scrub", "method": "resource.reset.method",
	"enabled": disableRemedy, "enable": disableRemedy, "disabled": disableRemedy, "health": healthRemedy, "health_check": healthRemedy, "include": includeRemedy, "import": includeRemedy,
	"priority": "the first [[resource]] that matches takes a device, so write this one before the others",
}

// Remedies for keys that have no replacement.
const (
	disableRemedy = "to turn off a resource, remove its table; for a built-in one, write builtin = false and a [[resource]] for each of the others"
	healthRemedy  = "remove it, since metalplug always checks the health of a device"
	includeRemedy = "write other files as conf.d/NAME.toml next to this file"
)

// siblingKeys returns the known keys of the table that contains the key at path.
func siblingKeys(path toml.Key) (names []string) {
	table := path[:len(path)-1].String()
	for _, key := range slices.Sorted(maps.Keys(exampleValues)) {
		if dot := strings.LastIndex(key, "."); key[:max(0, dot)] == table {
			names = append(names, key[dot+1:])
		}
	}
	return names
}

// suggestKey returns the known key that is most similar to an unknown one, or "". suggestKey first searches the list siblings,
// which contains the keys in the same table, for a similar or longer name. Next, it searches the other tables for the same name.
// Finally, it tries the map keyReplacements.
func suggestKey(path toml.Key, siblings []string) string {
	name := strings.ToLower(path[len(path)-1])
	if near := mostSimilar(name, siblings); near != "" {
		return near
	}
	for _, key := range slices.Backward(slices.Sorted(maps.Keys(exampleValues))) {
		if key == name || strings.HasSuffix(key, "."+name) {
			return key
		}
	}
	return keyReplacements[strings.ReplaceAll(name, "-", "_")]
}

// resourceKey is the name of the only array of tables in a file.
const resourceKey = "resource"

// lineIndex maps keys to their lines. In a key such as "resource.0.name", 0 is the number of the table.
type lineIndex map[string]int

// newLineIndex combines a document's keys from the parser ([toml.MetaData.Keys]) with the lines from the function [keyLines],
// which returns them in the same order.
func newLineIndex(lines []int, keys []toml.Key) lineIndex {
	index := make(lineIndex, len(keys))
	element := -1 // index of the current resource table
	for i, path := range keys[:min(len(keys), len(lines))] {
		if path[0] == resourceKey {
			if len(path) == 1 {
				element++
			}
			path = append(toml.Key{resourceKey, strconv.Itoa(element)}, path[1:]...)
		}
		// A table can occur twice, for example as [resource.reset] after reset.method. The table's line is that of its first
		// occurrence, even if the table is only part of a key there.
		for ; len(path) > 0; path = path[:len(path)-1] {
			if _, ok := index[path.String()]; !ok {
				index[path.String()] = lines[i]
			}
		}
	}
	return index
}

// line returns the line of the value at path, or of the nearest enclosing table in the file. The result is at least 1.
func (x lineIndex) line(path toml.Key) int {
	for ; len(path) > 0; path = path[:len(path)-1] {
		if line, ok := x[path.String()]; ok {
			return line
		}
	}
	return 1
}

// keyLines returns the line of each table header and key in a well-formed document, in order. A key in an inline table has the
// line on which the statement with this table begins. The parser does not report lines, so keyLines parses each statement
// separately. A statement is complete at the first line up to which it can be parsed.
func keyLines(text string) (lines []int) {
	statement, first := "", 1
	for i, line := range strings.SplitAfter(text, "\n") {
		statement += line
		if len(statement) > len(line) && strings.HasSuffix(strings.TrimSpace(line), ",") {
			continue // inside an array; to parse a long array once for each element would take seconds
		}
		meta, err := toml.Decode(statement, new(map[string]any))
		if err == nil {
			lines = append(lines, slices.Repeat([]int{first}, len(meta.Keys()))...)
			statement, first = "", i+2
		}
	}
	return lines
}
