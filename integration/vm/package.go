//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Versions of the packages that Packages returns.
const (
	Version      = "1.0.0"
	NewerVersion = "1.0.1"
)

// packed lists the sources of the packages, below the repository's root.
var packed = []string{
	"cgroup", "cmd", "daemon", "directory", "docs", "internal", "packaging", "selinux", "systemd", "udev",
	"go.mod", "go.sum", "CHANGELOG.md", "LICENSE", "README.md",
}

// Debs are packages built from this checkout, as files on this host.
type Debs struct {
	Metalplug string // package file with version Version
	Newer     string // package file with the same content and version NewerVersion
	SELinux   string
	DRA       string // metalplug-dra with version Version
}

// Packages builds the deb packages of this checkout like a release, for the machine. They are cached with the image
// until one of their sources changes. The test is skipped (see Need, "vm") if this host cannot build them.
func Packages(t testing.TB) Debs {
	t.Helper()
	dir, err := packages()
	Need(t, "vm", err)
	return Debs{
		Metalplug: filepath.Join(dir, "metalplug_"+Version+"-1_amd64.deb"),
		Newer:     filepath.Join(dir, "metalplug_"+NewerVersion+"-1_amd64.deb"),
		SELinux:   filepath.Join(dir, "metalplug-selinux_"+Version+"-1_all.deb"),
		DRA:       filepath.Join(dir, "metalplug-dra_"+Version+"-1_amd64.deb"),
	}
}

// packages returns the folder with the packages. It builds them if the cache has none.
func packages() (string, error) {
	root, err := repository()
	if err != nil {
		return "", err
	}
	key, err := content(root, packed)
	if err != nil {
		return "", err
	}
	cache, err := cacheFolder()
	if err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(cache, "packages.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", fmt.Errorf("lock the packages: %w", err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock the packages: %w", err)
	}
	dir := filepath.Join(cache, "packages-"+key)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	return dir, makePackages(root, dir)
}

// cacheFolder returns the folder in which image.sh also keeps the image.
func cacheFolder() (string, error) {
	dir := os.Getenv("METALPLUG_CACHE")
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find the cache: %w", err)
		}
		dir = filepath.Join(user, "metalplug")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the cache: %w", err)
	}
	return dir, nil
}

// content returns a hash of the names, modes and bytes of files and folders below root, without tests.
func content(root string, names []string) (string, error) {
	sum := sha256.New()
	for _, name := range names {
		err := filepath.WalkDir(filepath.Join(root, name), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || strings.HasSuffix(path, "_test.go") {
				return err
			}
			return addFile(sum, root, path)
		})
		if err != nil {
			return "", fmt.Errorf("hash %s: %w", name, err)
		}
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}

func addFile(sum hash.Hash, root, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	fmt.Fprintf(sum, "%s %v %d\n", strings.TrimPrefix(path, root), info.Mode(), info.Size())
	_, err = io.Copy(sum, f)
	return err
}

// makePackages builds the packages in a folder, which does not exist until it is complete. The newer package has the same
// content and a higher version.
func makePackages(root, dir string) error {
	const script = `set -eu
packaging/build-deps.sh packages
rm -rf "$1.new"
ARCHES=amd64 FORMATS=deb VERSION=$2 packaging/packages.sh "$1.new" metalplugd metalplugctl metalplug-holders metalplug-dra
dpkg-deb -R "$1.new/metalplug_$2-1_amd64.deb" "$1.new/tree"
sed -i "s/^Version: .*/Version: $3-1/" "$1.new/tree/DEBIAN/control"
dpkg-deb --root-owner-group -Zgzip -b "$1.new/tree" "$1.new/metalplug_$3-1_amd64.deb"
rm -r "$1.new/tree"
mv "$1.new" "$1"
`
	c := exec.Command("sh", "-c", script, "packages", dir, Version, NewerVersion)
	c.Dir = root
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("build the packages: %w", errors.Join(err, errors.New(strings.TrimSpace(string(out)))))
	}
	return nil
}
