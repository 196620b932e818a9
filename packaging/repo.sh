#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes apt and dnf repositories from packages, ready to be copied to a mirror. Packages of other versions in the directory
# are kept, for a downgrade.
#
#   repo.sh PACKAGES DIRECTORY
#
# KEY  the GPG key that signs the rpms and the indices of both repositories (default: nothing is signed)
# SOURCE_DATE_EPOCH  the date in the indices (default: that of the last commit)
set -euo pipefail
cd "$(dirname "$0")/.."

umask 022 # a mirror serves files that every user can read
packages=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
key=${KEY:-}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(packaging/epoch.sh)}

apt() {
	local root=$out/apt arch dir
	rm -rf "$root/dists"
	mkdir -p "$root/pool"
	cp "$packages"/*.deb "$root/pool/"
	cd "$root"
	for arch in amd64 arm64; do
		dir=dists/stable/main/binary-$arch
		mkdir -p "$dir"
		apt-ftparchive -a "$arch" packages pool >"$dir/Packages"
		gzip -9nk "$dir/Packages"
	done
	# Written to another directory first, because the file lists the files of this one.
	apt-ftparchive -o APT::FTPArchive::Release::Origin=metalplug -o APT::FTPArchive::Release::Label=metalplug \
		-o APT::FTPArchive::Release::Suite=stable -o APT::FTPArchive::Release::Codename=stable \
		-o APT::FTPArchive::Release::Architectures='amd64 arm64' -o APT::FTPArchive::Release::Components=main \
		-o APT::FTPArchive::Release::Date="$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")" \
		release dists/stable >"$root/Release"
	mv Release dists/stable/Release
	if [[ -n $key ]]; then
		gpg --batch --yes --local-user "$key" --armor --detach-sign --output dists/stable/Release.gpg dists/stable/Release
		gpg --batch --yes --local-user "$key" --clearsign --output dists/stable/InRelease dists/stable/Release
		gpg --armor --export "$key" >metalplug.asc
	fi
	cat >metalplug.sources <<-END
		# Replace URIs with the URL of this directory on your mirror, and copy metalplug.asc to /etc/apt/keyrings.
		Types: deb
		URIs: file:///srv/mirror/metalplug/apt
		Suites: stable
		Components: main
		$([[ -n $key ]] && echo 'Signed-By: /etc/apt/keyrings/metalplug.asc' || echo 'Trusted: yes')
	END
}

dnf() {
	local root=$out/dnf
	local -a new
	mkdir -p "$root"
	cp "$packages"/*.rpm "$root/"
	mapfile -t new < <(cd "$packages" && printf './%s\n' *.rpm)
	cd "$root"
	if [[ -n $key ]]; then
		# Debian's rpm expects gpg at another path.
		rpmsign --define "_gpg_name $key" --define "__gpg $(command -v gpg)" --addsign "${new[@]}"
	fi
	touch -d "@$SOURCE_DATE_EPOCH" "${new[@]}" # the index has the time of each file
	createrepo_c --quiet --general-compress-type gz --no-database --revision "$SOURCE_DATE_EPOCH" --set-timestamp-to-revision .
	if [[ -n $key ]]; then
		gpg --batch --yes --local-user "$key" --armor --detach-sign --output repodata/repomd.xml.asc repodata/repomd.xml
		gpg --armor --export "$key" >metalplug.asc
	fi
	cat >metalplug.repo <<-END
		[metalplug]
		name=metalplug
		# The URL of this directory on your mirror.
		baseurl=file:///srv/mirror/metalplug/dnf
		gpgcheck=$([[ -n $key ]] && echo 1 || echo 0)
		repo_gpgcheck=$([[ -n $key ]] && echo 1 || echo 0)
		gpgkey=file:///srv/mirror/metalplug/dnf/metalplug.asc
	END
}

(apt)
(dnf)
echo "$out"
