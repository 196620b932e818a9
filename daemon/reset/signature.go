// SPDX-License-Identifier: Apache-2.0

package reset

// This file lists the signatures of volume managers, RAID sets, encrypted volumes and clusters. A disk with such a signature may
// be part of a volume on several disks, or may belong to a system that is not running. Only an operator can order metalplug to
// erase such a disk. The comment next to each signature names the source that defines it. Any other content is unknown data,
// which is erased only if a pod wrote it. The names are those that udev uses in ID_FS_TYPE.

import (
	"encoding/binary"
	"slices"
)

// signature is a text that identifies a format. On a disk, the text may be at one of several offsets.
type signature struct {
	name  string
	magic string
	align int64   // the disk's size is rounded down to a multiple of this number, or not at all if 0
	at    []int64 // offsets in bytes, or from the end of the disk if negative
}

// places returns the offsets at which the signature may be on a disk of the given size. The signature may also be at the same
// offset in the first partition (see firstPartition).
func (s signature) places(size int64) (all []int64) {
	for _, at := range s.at {
		if at < 0 {
			all = append(all, size-size%max(s.align, 1)+at)
			continue
		}
		all = append(all, at, firstPartition+at)
	}
	return all
}

// firstPartition is the usual offset, in bytes, of the first partition. If the partition table is lost, the signatures in this
// partition remain.
const firstPartition = 1 << 20

// knownSignatures returns all known signatures.
func knownSignatures() []signature {
	const (
		md     = "\xfc\x4e\x2b\xa9" // include/uapi/linux/raid/md_p.h MD_SB_MAGIC
		bcache = "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"
	)
	start, zfs := []int64{0}, uberblocks()
	all := []signature{
		{"LVM2_member", "LABELONE", 0, []int64{0, 512, 1024, 1536}}, // LVM2 lib/label/label.h, one of the first four sectors
		{"LVM1_member", "HM\x01\x00", 0, start},                     // LVM2 lib/format1/disk-rep.h
		{"LVM1_member", "HM\x02\x00", 0, start},
		{"crypto_LUKS", "LUKS\xba\xbe", 0, start}, // LUKS2 On-Disk Format Specification 1.1, 2.1, and the same in LUKS1
		// The second LUKS2 header. The offset of this header depends on the size of the first header.
		{"crypto_LUKS", "SKUL\xba\xbe", 0, []int64{0x4000, 0x8000, 0x10000, 0x20000, 0x40000, 0x80000, 0x100000, 0x200000, 0x400000}},
		{"linux_raid_member", md, 0, []int64{0, 4096}},                                    // versions 1.1 and 1.2
		{"linux_raid_member", md, 4096, []int64{-8192}},                                   // 1.0
		{"linux_raid_member", md, 65536, []int64{-65536}},                                 // 0.90, MD_NEW_SIZE_SECTORS
		{"linux_raid_member", "\xa9\x2b\x4e\xfc", 65536, []int64{-65536}},                 // the same in the other byte order
		{"ddf_raid_member", "\xde\x11\xde\x11", 0, []int64{-512, -4096}},                  // SNIA DDF 2.0, 4.1, the last block
		{"isw_raid_member", "Intel Raid ISM Cfg Sig. ", 0, []int64{-1024, -8192}},         // mdadm super-intel.c MPB_SIGNATURE
		{"lsi_mega_raid_member", "$XIDE$", 0, []int64{-512}},                              // dmraid lib/format/ataraid/lsi.h
		{"nvidia_raid_member", "NVIDIA", 0, []int64{-1024}},                               // dmraid lib/format/ataraid/nv.h
		{"jmicron_raid_member", "JM", 0, []int64{-512}},                                   // dmraid lib/format/ataraid/jm.h
		{"promise_fasttrack_raid_member", "Promise Technology, Inc.", 0, []int64{-32256}}, // dmraid lib/format/ataraid/pdc.h
		{"zfs_member", string(binary.LittleEndian.AppendUint64(nil, uberblock)), 256 << 10, zfs},
		{"zfs_member", string(binary.BigEndian.AppendUint64(nil, uberblock)), 256 << 10, zfs},
		{"ceph_bluestore", "bluestore block device", 0, start},             // ceph src/os/bluestore/bluestore_types.cc
		{"bcache", bcache, 0, []int64{4120}},                               // drivers/md/bcache/bcache_ondisk.h
		{"dm_snapshot", "SnAp", 0, start},                                  // drivers/md/dm-snap-persistent.c SNAP_MAGIC
		{"dm_integrity", "integrt\x00", 0, start},                          // drivers/md/dm-integrity.c SB_MAGIC
		{"dm_verity", "verity\x00\x00", 0, start},                          // cryptsetup lib/verity/verity.c
		{"vdo", "dmvdo001", 0, start},                                      // drivers/md/dm-vdo/encodings.c
		{"stratis", "!Stra0tis\x86\xff\x02^\x41rh", 0, []int64{516, 4612}}, // stratisd static_header.rs STRAT_MAGIC
		{"BitLocker", "-FVE-FS-", 0, []int64{3}},                           // cryptsetup lib/bitlk/bitlk.c
		{"oracle_asm", "ORCLDISK", 0, []int64{32}},                         // oracleasm kernel/oracleasm.h
		{"vmfs_volume", "\x0d\xd0\x01\xc0", 0, []int64{0x100000}},          // vmfs-tools vmfs_volume.h VMFS_VOLINFO_MAGIC
		{"vmfs", "\x5e\xf1\xab\x2f", 0, []int64{0x200000}},                 // vmfs-tools vmfs_fs.h VMFS_FSINFO_MAGIC
		{"ldm", "PRIVHEAD", 0, []int64{3072}},                              // block/partitions/ldm.h, dynamic disk with MBR
		{"storage_spaces", "SPACEDB ", 0, []int64{4096}},                   // Windows Storage Spaces, as observed on a disk
	}
	for _, version := range []string{"\x6a", "\x6b", "\x6c", "\x6d"} { // drivers/block/drbd/drbd_int.h DRBD_MD_MAGIC_07 to _09
		all = append(all, signature{"drbd", "\x83\x74\x02" + version, 4096, []int64{-4036}}) // byte 60 of the last block, drbd_md_ss
	}
	return all
}

// uberblock is UBERBLOCK_MAGIC (OpenZFS include/sys/uberblock_impl.h).
const uberblock = 0x00bab10c

// uberblocks returns the offsets of the uberblocks in the four labels of a ZFS disk. A label is 256 KiB long. The uberblocks are
// in its second half, and are at least 1 KiB apart (OpenZFS include/sys/vdev_impl.h).
func uberblocks() (all []int64) {
	const label = 256 << 10
	for _, start := range [...]int64{0, label, -2 * label, -label} {
		for slot := int64(label / 2); slot < label; slot += 1 << 10 {
			all = append(all, start+slot)
		}
	}
	return all
}

// signatures returns the names of the signatures on the disk, without duplicates.
func (s *surface) signatures() (found []string) {
	for _, sig := range knownSignatures() {
		has := func(at int64) bool { return s.contains(at, sig.magic) }
		if !slices.Contains(found, sig.name) && slices.ContainsFunc(sig.places(s.size), has) {
			found = append(found, sig.name)
		}
	}
	return found
}
