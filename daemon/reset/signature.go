// SPDX-License-Identifier: Apache-2.0

package reset

// Where file systems, partition tables, volumes and RAID sets leave their mark. Linux's own are in
// include/uapi/linux/magic.h and in the header of each file system; the others are named at the line. What is not here
// is not taken for an empty disk: it is unknown data.

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// signature is bytes at a place.
type signature struct {
	name  string
	at    int64 // bytes; negative: from the end
	align int64 // what the end is rounded down to; 0 is 1
	magic string
}

// places returns where on a disk of a size the signature may be: counted from an end, and from where the first partition
// of a disk usually begins, which a lost partition table leaves behind.
func (s signature) places(size int64) []int64 {
	if s.at >= 0 {
		return []int64{s.at, zapped + s.at}
	}
	return []int64{size - size%max(s.align, 1) + s.at}
}

// kept reports whether the name of a signature is that of a volume manager, a RAID set, an encrypted volume or a cluster's
// disk: one of several disks, or one whose owner is not mounted. Only the operator may have it erased.
func kept(name string) bool {
	if strings.HasSuffix(name, "_raid_member") || strings.HasPrefix(name, "LVM") {
		return true
	}
	return slices.Contains([]string{
		"BitLocker", "bcache", "ceph_bluestore", "crypto_LUKS", "dm_integrity", "dm_snapshot", "dm_verity", "drbd", "ldm",
		"oracle_asm", "storage_spaces", "stratis", "vdo", "vmfs", "vmfs_volume", "zfs_member",
	}, name)
}

// signatures returns all that are known. The longer and the surer ones come first.
func signatures() []signature {
	return slices.Concat(partitionTables(), volumes(), raids(), filesystems(), foreign(), swaps(), uberblocks())
}

func partitionTables() []signature {
	return []signature{
		// UEFI Specification 2.10, 5.3.2: in the second block and in the last one, whatever the block size.
		{"gpt", 512, 0, "EFI PART"},
		{"gpt", 1024, 0, "EFI PART"},
		{"gpt", 2048, 0, "EFI PART"},
		{"gpt", 4096, 0, "EFI PART"},
		{"gpt", -512, 0, "EFI PART"},
		{"gpt", -1024, 0, "EFI PART"},
		{"gpt", -2048, 0, "EFI PART"},
		{"gpt", -4096, 0, "EFI PART"},
		{"mac", 512, 0, "PM\x00\x00"},           // block/partitions/mac.h MAC_PARTITION_MAGIC
		{"sgi", 0, 0, "\x0b\xe5\xa9\x41"},       // block/partitions/sgi.c SGI_LABEL_MAGIC
		{"sun", 508, 0, "\xda\xbe"},             // block/partitions/sun.c SUN_LABEL_MAGIC
		{"bsd", 512, 0, "\x57\x45\x56\x82"},     // block/partitions/msdos.c BSD_DISKMAGIC
		{"bsd", 0, 0, "\x57\x45\x56\x82"},       // the same without a block before it
		{"bsd", 64, 0, "\x57\x45\x56\x82"},      // the same on Alpha
		{"ldm", 3072, 0, "PRIVHEAD"},            // block/partitions/ldm.h: Windows dynamic disk, MBR
		{"storage_spaces", 4096, 0, "SPACEDB "}, // Windows Storage Spaces, as read off a disk
		{"dasd", 4096, 0, "\xe5\xd6\xd3\xf1"},   // arch/s390/include/uapi/asm/vtoc.h, VOL1 in EBCDIC, 4k blocks
		{"aix", 0, 0, "\xc9\xc2\xd4\xc1"},       // block/partitions/msdos.c AIX_LABEL_MAGIC
		{"atari_xbios", 3, 0, "XBIOS"},          // block/partitions/atari.c: no table, but no data of ours
		{"mac", 0, 0, "ER\x02\x00"},             // block/partitions/mac.h MAC_DRIVER_MAGIC, 512-byte blocks
		{"mac", 0, 0, "ER\x10\x00"},             // the same, 4096-byte blocks
		{"dos", 510, 0, "\x55\xaa"},             // block/partitions/msdos.c MSDOS_LABEL_MAGIC1; also a boot sector
	}
}

func volumes() []signature {
	return []signature{
		{"LVM2_member", 0, 0, "LABELONE"}, // LVM2 lib/label/label.h: in one of the first four sectors
		{"LVM2_member", 512, 0, "LABELONE"},
		{"LVM2_member", 1024, 0, "LABELONE"},
		{"LVM2_member", 1536, 0, "LABELONE"},
		{"LVM1_member", 0, 0, "HM\x01\x00"}, // LVM2 lib/format1/disk-rep.h
		{"LVM1_member", 0, 0, "HM\x02\x00"},
		{"dm_snapshot", 0, 0, "SnAp"},                       // drivers/md/dm-snap-persistent.c SNAP_MAGIC
		{"dm_integrity", 0, 0, "integrt\x00"},               // drivers/md/dm-integrity.c SB_MAGIC
		{"dm_verity", 0, 0, "verity\x00\x00"},               // cryptsetup lib/verity/verity.c
		{"vdo", 0, 0, "dmvdo001"},                           // drivers/md/dm-vdo/encodings.c
		{"stratis", 516, 0, "!Stra0tis\x86\xff\x02^\x41rh"}, // stratisd static_header.rs STRAT_MAGIC
		{"stratis", 4612, 0, "!Stra0tis\x86\xff\x02^\x41rh"},
		{"crypto_LUKS", 0, 0, "LUKS\xba\xbe"},      // LUKS2 On-Disk Format Specification 1.1, 2.1; LUKS1 has the same
		{"crypto_LUKS", 0x4000, 0, "SKUL\xba\xbe"}, // its second header, one place for each size of the first
		{"crypto_LUKS", 0x8000, 0, "SKUL\xba\xbe"},
		{"crypto_LUKS", 0x10000, 0, "SKUL\xba\xbe"},
		{"crypto_LUKS", 0x20000, 0, "SKUL\xba\xbe"},
		{"crypto_LUKS", 0x40000, 0, "SKUL\xba\xbe"},
		{"crypto_LUKS", 0x80000, 0, "SKUL\xba\xbe"},
		{"crypto_LUKS", 0x100000, 0, "SKUL\xba\xbe"},
		{"crypto_LUKS", 0x200000, 0, "SKUL\xba\xbe"},
		{"crypto_LUKS", 0x400000, 0, "SKUL\xba\xbe"},
		{"BitLocker", 3, 0, "-FVE-FS-"},                                                           // cryptsetup lib/bitlk/bitlk.c
		{"bcache", 4120, 0, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"},   // drivers/md/bcache/bcache_ondisk.h
		{"bcachefs", 4120, 0, "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"}, // fs/bcachefs/bcachefs_format.h BCHFS_MAGIC
		{"ceph_bluestore", 0, 0, "bluestore block device"},                                        // ceph src/os/bluestore/bluestore_types.cc
		{"drbd", -4036, 0, "\x83\x74\x02\x6a"},                                                    // drivers/block/drbd/drbd_int.h DRBD_MD_MAGIC_07 to _09, 60 bytes
		{"drbd", -4036, 0, "\x83\x74\x02\x6b"},                                                    // into the last 4096
		{"drbd", -4036, 0, "\x83\x74\x02\x6c"},
		{"drbd", -4036, 0, "\x83\x74\x02\x6d"},
		{"oracle_asm", 32, 0, "ORCLDISK"},                // oracleasm kernel/oracleasm.h
		{"vmfs_volume", 0x100000, 0, "\x0d\xd0\x01\xc0"}, // vmfs-tools vmfs_volume.h VMFS_VOLINFO_MAGIC
		{"vmfs", 0x200000, 0, "\x5e\xf1\xab\x2f"},        // vmfs-tools vmfs_fs.h VMFS_FSINFO_MAGIC
	}
}

func raids() []signature {
	const md = "\xfc\x4e\x2b\xa9" // include/uapi/linux/raid/md_p.h MD_SB_MAGIC
	return []signature{
		{"linux_raid_member", 0, 0, md},                          // version 1.1
		{"linux_raid_member", 4096, 0, md},                       // 1.2
		{"linux_raid_member", -8192, 4096, md},                   // 1.0
		{"linux_raid_member", -65536, 65536, md},                 // 0.90, MD_NEW_SIZE_SECTORS
		{"linux_raid_member", -65536, 65536, "\xa9\x2b\x4e\xfc"}, // the same, of another byte order
		{"ddf_raid_member", -512, 0, "\xde\x11\xde\x11"},         // SNIA DDF 2.0, 4.1: anchor header in the last block
		{"ddf_raid_member", -4096, 0, "\xde\x11\xde\x11"},
		{"isw_raid_member", -1024, 0, "Intel Raid ISM Cfg Sig. "}, // mdadm super-intel.c MPB_SIGNATURE: second block from the end
		{"isw_raid_member", -8192, 0, "Intel Raid ISM Cfg Sig. "},
		{"lsi_mega_raid_member", -512, 0, "$XIDE$"},                              // dmraid lib/format/ataraid/lsi.h
		{"nvidia_raid_member", -1024, 0, "NVIDIA"},                               // dmraid lib/format/ataraid/nv.h
		{"jmicron_raid_member", -512, 0, "JM"},                                   // dmraid lib/format/ataraid/jm.h
		{"promise_fasttrack_raid_member", -32256, 0, "Promise Technology, Inc."}, // dmraid lib/format/ataraid/pdc.h
	}
}

func filesystems() []signature {
	return []signature{
		{"btrfs", 0x10040, 0, "_BHRfS_M"},
		{"xfs", 0, 0, "XFSB"},
		{"xfs_external_log", 0, 0, "\xfe\xed\xba\xbe"}, // fs/xfs/libxfs/xfs_log_format.h XLOG_HEADER_MAGIC_NUM
		{"f2fs", 0x400, 0, "\x10\x20\xf5\xf2"},
		{"iso9660", 0x8001, 0, "CD001"},
		{"udf", 0x8001, 0, "BEA01"}, // ECMA-167 part 2, 9.2
		{"erofs", 0x400, 0, "\xe2\xe1\xf5\xe0"},
		{"squashfs", 0, 0, "hsqs"},
		{"squashfs", 0, 0, "sqsh"},
		{"cramfs", 0, 0, "\x45\x3d\xcd\x28"},
		{"cramfs", 0, 0, "\x28\xcd\x3d\x45"},
		{"romfs", 0, 0, "-rom1fs-"},
		{"zonefs", 0, 0, "SFOZ"},
		{"jfs", 0x8000, 0, "JFS1"},
		{"reiserfs", 0x10034, 0, "ReIsEr"},
		{"reiserfs", 0x2034, 0, "ReIsEr"},
		{"reiser4", 0x10000, 0, "ReIsEr4"},
		{"gfs2", 0x10000, 0, "\x01\x16\x19\x70"},
		{"ocfs2", 0x400, 0, "OCFSV2"}, // fs/ocfs2/ocfs2_fs.h: block 2, of 512 to 4096 bytes
		{"ocfs2", 0x800, 0, "OCFSV2"},
		{"ocfs2", 0x1000, 0, "OCFSV2"},
		{"ocfs2", 0x2000, 0, "OCFSV2"},
		{"ext", 0x438, 0, "\x53\xef"}, // which of them: see refined
		{"nilfs2", 0x406, 0, "\x34\x34"},
		{"nilfs2", -4090, 4096, "\x34\x34"}, // the second superblock, NILFS_SB2_OFFSET_BYTES
		{"minix", 0x410, 0, "\x7f\x13"},
		{"minix", 0x410, 0, "\x8f\x13"},
		{"minix", 0x410, 0, "\x68\x24"},
		{"minix", 0x410, 0, "\x78\x24"},
		{"minix", 0x418, 0, "\x5a\x4d"},
		{"ufs", 0x255c, 0, "\x54\x19\x01\x00"}, // fs/ufs/ufs_fs.h: 1372 bytes into the superblock
		{"ufs", 0x255c, 0, "\x19\x01\x54\x19"},
		{"ufs", 0x1055c, 0, "\x19\x01\x54\x19"},
		{"vxfs", 0x400, 0, "\xf5\xfc\x01\xa5"},
	}
}

func foreign() []signature {
	return []signature{
		{"ntfs", 3, 0, "NTFS    "},
		{"exfat", 3, 0, "EXFAT   "},
		{"ReFS", 3, 0, "ReFS\x00\x00\x00\x00"}, // Windows; libblkid has the same
		{"vfat", 0x52, 0, "FAT32   "},          // Microsoft FAT specification, 3.3: what mkfs writes; nothing has to
		{"vfat", 0x36, 0, "FAT16   "},
		{"vfat", 0x36, 0, "FAT12   "},
		{"vfat", 0x36, 0, "FAT     "},
		{"hfsplus", 0x400, 0, "H+\x00\x04"}, // Apple Technical Note TN1150
		{"hfsplus", 0x400, 0, "HX\x00\x05"},
		{"hfs", 0x400, 0, "BD"},
		{"apfs", 32, 0, "NXSB"}, // Apple File System Reference, nx_superblock_t
	}
}

// swaps returns the marks of swap space and of an image of a sleeping system, at the end of the first page, whatever the
// page size of the machine that wrote it (include/linux/swap.h; kernel/power/swap.c).
func swaps() (all []signature) {
	for page := int64(4096); page <= 65536; page *= 2 {
		all = append(
			all,
			signature{"swap", page - 10, 0, "SWAPSPACE2"},
			signature{"swap", page - 10, 0, "SWAP-SPACE"},
			signature{"swsuspend", page - 10, 0, "S1SUSPEND"},
			signature{"swsuspend", page - 10, 0, "S2SUSPEND"},
			signature{"swsuspend", page - 10, 0, "ULSUSPEND"},
			signature{"swsuspend", page - 10, 0, "LINHIB0001"},
		)
	}
	return all
}

// uberblocks returns the places where the four labels of a ZFS disk, each of 256 KiB, have their uberblocks: 128 KiB into
// each, 1 KiB apart or more, in either byte order (OpenZFS include/sys/vdev_impl.h, uberblock_impl.h).
func uberblocks() (all []signature) {
	const label = 256 << 10
	magic := binary.LittleEndian.AppendUint64(nil, 0x00bab10c)
	swapped := binary.BigEndian.AppendUint64(nil, 0x00bab10c)
	for _, start := range [...]int64{0, label, -2 * label, -label} {
		for slot := int64(128 << 10); slot < label; slot += 1 << 10 {
			all = append(all, signature{"zfs_member", start + slot, label, string(magic)}, signature{"zfs_member", start + slot, label, string(swapped)})
		}
	}
	return all
}

// refined says more of some of what was found: which of its versions an ext file system is, and that the last two bytes
// of the first sector are those of a boot sector rather than those of a partition table.
func (s *surface) refined(found []string) []string {
	boots := slices.ContainsFunc(found, func(name string) bool {
		return slices.Contains([]string{"vfat", "exfat", "ntfs", "ReFS", "BitLocker"}, name)
	})
	gpt := slices.Contains(found, "gpt")
	var told []string
	for _, name := range found {
		switch {
		case name == "dos" && (boots || gpt): // with GPT it is the table that protects it
			continue
		case name == "ext":
			name = s.extVersion()
		}
		told = append(told, name)
	}
	return told
}

// extVersion reads the features of the superblock (fs/ext4/ext4.h): s_feature_compat, _incompat and _ro_compat.
func (s *surface) extVersion() string {
	const (
		hasJournal  = 0x4   // EXT4_FEATURE_COMPAT_HAS_JOURNAL
		journalDev  = 0x8   // EXT4_FEATURE_INCOMPAT_JOURNAL_DEV
		onlyInExt4  = 0x6c0 // EXTENTS, 64BIT, FLEX_BG, EA_INODE
		onlyInExt4R = 0x478 // HUGE_FILE, GDT_CSUM, DIR_NLINK, EXTRA_ISIZE, METADATA_CSUM
	)
	const features = 0x45c
	if len(s.first) < features+12 {
		return "ext"
	}
	compat := binary.LittleEndian.Uint32(s.first[features:])
	incompat := binary.LittleEndian.Uint32(s.first[features+4:])
	readOnly := binary.LittleEndian.Uint32(s.first[features+8:])
	version := 2
	switch {
	case incompat&journalDev != 0:
		return "jbd"
	case incompat&onlyInExt4 != 0 || readOnly&onlyInExt4R != 0:
		version = 4
	case compat&hasJournal != 0:
		version = 3
	}
	return fmt.Sprintf("ext%d", version)
}
