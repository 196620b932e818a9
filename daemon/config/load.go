// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/udev/recording"
)

// fileSize is the largest file that is read, in bytes: room for some hundred resources.
const fileSize = 64 << 10

// Load reads a configuration file and then, in the order of their names, the drop-ins conf.d/*.toml in the same
// directory. What a later file sets holds; a [[resource]] of a name that an earlier file has replaces that one in its
// place, any other is added at the end. The file must exist unless it is [DefaultFile]. An error is a [Problems].
func Load(file string) (Config, error) {
	if file == "" {
		return Config{}, Problems{{File: `""`, What: "no file has an empty name: name one, or none at all for " + DefaultFile}}
	}
	return load(file, file == DefaultFile)
}

// load reads the files. The main one may be missing if it is optional.
func load(main string, optional bool) (Config, error) {
	dir, err := filepath.Abs(filepath.Dir(main))
	if err != nil {
		return Config{}, Problems{unreadable(main, err)}
	}
	names, err := dropIns(filepath.Join(filepath.Dir(main), "conf.d"))
	var problems Problems
	if err != nil {
		problems = append(problems, unreadable(filepath.Join(filepath.Dir(main), "conf.d"), err))
	}
	c := basic()
	names = append([]string{main}, names...)
	for _, name := range names {
		text, err := read(name)
		if optional && name == main && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			problems = append(problems, unreadable(name, err))
			continue
		}
		problems = append(problems, c.apply(name, dir, text)...)
		c.Files = append(c.Files, name)
	}
	if len(problems) > 0 {
		return Config{}, problems
	}
	c.complete()
	return c, nil
}

// Check looks at what the configuration names and a daemon cannot start without: the recording, if there is one. It
// reads it. An error is a [Problems], with the line that names it.
func (c Config) Check() error {
	if c.Hardware.Recording == "" {
		return nil
	}
	if err := recording.Check(c.Hardware.Recording); err != nil {
		problem := c.source
		problem.What = err.Error()
		return Problems{problem}
	}
	return nil
}

// unreadable is the problem of a file that cannot be read. The name of the file is told once.
func unreadable(name string, err error) Problem {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		err = fmt.Errorf("%s: %w", pathError.Op, pathError.Err)
	}
	return Problem{File: name, What: err.Error()}
}

// dropIns returns the files of a directory that count, by name; none if the directory is not there.
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

// read returns the text of a file.
func read(name string) (string, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe would wait for its writer
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	// A drop-in is masked by a link to /dev/null; reading a directory is an error that says so.
	null, err := os.Stat(os.DevNull)
	if !info.Mode().IsRegular() && !info.IsDir() && (err != nil || !os.SameFile(info, null)) {
		return "", errors.New("is not a regular file")
	}
	all, err := io.ReadAll(io.LimitReader(f, fileSize+1))
	if err != nil {
		return "", err
	}
	if len(all) > fileSize {
		return "", fmt.Errorf("larger than %d bytes", fileSize)
	}
	return normal(string(all)), nil
}

// normal returns a text with what TOML regards as equal made equal: no byte order mark, lines that end in "\n".
func normal(text string) string {
	return strings.ReplaceAll(strings.TrimPrefix(text, "\ufeff"), "\r\n", "\n")
}

// apply changes c by what the text of a file says, and returns what is wrong with it by line. A recording is looked for
// in dir.
func (c *Config) apply(name, dir, text string) Problems {
	lines, tooDeep := keyLines(text)
	if tooDeep > 0 {
		return Problems{{File: name, Line: tooDeep, What: fmt.Sprintf("nested more than %d deep", deepest)}}
	}
	var tree map[string]any
	meta, err := toml.Decode(text, &tree)
	if err != nil {
		return Problems{syntax(name, err)}
	}
	f := &file{name: name, lines: newLineIndex(lines, tree, meta.Keys()), known: make(map[string]toml.Key)}
	c.take(&table{file: f, values: tree}, dir)
	f.reportUnknown()
	slices.SortStableFunc(f.problems, func(a, b Problem) int { return a.Line - b.Line })
	return f.problems
}

// take takes everything that a file can say.
func (c *Config) take(root *table, dir string) {
	takePaths(root.table("paths"), &c.Paths)
	takeHardware(root.table("hardware"), c, dir)
	takeHelpers(root.table("reset"), &c.Reset)
	for _, r := range resources(root) {
		c.clash(r)
		c.set(r.Resource)
		c.note(r)
	}
	root.end()
}

// syntax is the problem of a file that is not TOML. There is only the first: what follows is anyone's guess.
func syntax(name string, err error) Problem {
	var parseError toml.ParseError
	if !errors.As(err, &parseError) {
		return Problem{File: name, What: err.Error()}
	}
	return Problem{
		File: name,
		Line: max(1, parseError.Position.Line), // it is 0 where a file of one line ends too early
		Key:  plain(parseError.LastKey, shown),
		What: ownStyle(plain(parseError.Message, 2*shown)),
	}
}

// ownStyle returns a message of the parser as ours are: it begins with a small letter and has no full stop.
func ownStyle(message string) string {
	message = strings.TrimSuffix(message, ".")
	if len(message) > 1 && message[1] >= 'a' && message[1] <= 'z' {
		message = strings.ToLower(message[:1]) + message[1:]
	}
	return message
}

// set replaces the resource of that name, or adds one.
func (c *Config) set(r Resource) {
	i := slices.IndexFunc(c.Resources, func(old Resource) bool { return old.Name == r.Name })
	if i < 0 {
		c.Resources = append(c.Resources, r)
		return
	}
	c.Resources[i] = r
}
