// SPDX-License-Identifier: GPL-2.0-only
/*
 * An FPGA card for the kernel's own DFL drivers, in the memory of QEMU's
 * ivshmem-plain: a management engine (FME) and one port with an accelerator.
 *
 * Memory does not react to what is written to it. A timer does that for the two
 * things that the drivers wait for: the port acknowledges a reset, and its end.
 * The errors of the port are gone with a reset. On a real card whoever writes
 * them back clears them; the driver resets the port when it does that, and of
 * memory nobody can tell that it was written what it had.
 *
 * This file is built against the private headers of drivers/fpga and is, as
 * they are, under the GNU General Public License, version 2.
 */

#include <linux/hrtimer.h>
#include <linux/module.h>
#include <linux/pci.h>

#include "dfl.h"

#define REGISTERS_BAR 2

/* Where things are in the registers; what is where in each, dfl.h tells. */
#define FME 0x00000
#define PORT 0x10000
#define PORT_ERRORS (PORT + 0x1000)
#define AFU (PORT + 0x40000)
#define AFU_SIZE 0x40000
#define LIST_SIZE 0x10000 /* of the FME */

/* Of dfl-afu-error.c. */
#define PORT_ERROR 0x10
#define PORT_FIRST_ERROR 0x18

/* The drivers wait for 1 ms at most (RST_POLL_TIMEOUT in dfl-afu-main.c). */
#define TICK_NS (200 * NSEC_PER_USEC)

struct fake {
	struct dfl_fpga_cdev *cdev;
	void __iomem *registers;
	struct hrtimer timer;
};

static u64 header(u64 type, u64 id, u64 next)
{
	return FIELD_PREP(DFH_TYPE, type) | FIELD_PREP(DFH_ID, id) |
	       (next ? FIELD_PREP(DFH_NEXT_HDR_OFST, next) : DFH_EOL);
}

static void write_card(void __iomem *r)
{
	memset_io(r, 0, AFU + AFU_SIZE);
	writeq(header(DFH_TYPE_FIU, DFH_ID_FIU_FME, 0), r + FME + DFH);
	writeq(FIELD_PREP(FME_CAP_NUM_PORTS, 1), r + FME + FME_HDR_CAP);
	writeq(FME_PORT_OFST_IMP | FIELD_PREP(FME_PORT_OFST_BAR_ID, REGISTERS_BAR) | PORT,
	       r + FME + FME_HDR_PORT_OFST(0));
	writeq(0xb175, r + FME + FME_HDR_BITSTREAM_ID);

	writeq(header(DFH_TYPE_FIU, DFH_ID_FIU_PORT, PORT_ERRORS - PORT), r + PORT + DFH);
	writeq(AFU - PORT, r + PORT + NEXT_AFU);
	writeq(FIELD_PREP(PORT_CAP_MMIO_SIZE, AFU_SIZE >> 10), r + PORT + PORT_HDR_CAP);
	writeq(header(DFH_TYPE_PRIVATE, PORT_FEATURE_ID_ERROR, 0), r + PORT_ERRORS + DFH);

	writeq(header(DFH_TYPE_AFU, 0, 0), r + AFU + DFH);
	writeq(0x8899aabbccddeeff, r + AFU + GUID_L);
	writeq(0x0011223344556677, r + AFU + GUID_H);
}

static enum hrtimer_restart tick(struct hrtimer *timer)
{
	struct fake *f = container_of(timer, struct fake, timer);
	u64 control = readq(f->registers + PORT + PORT_HDR_CTRL);
	bool reset = control & PORT_CTRL_SFTRST, acknowledged = control & PORT_CTRL_SFTRST_ACK;

	if (reset && !acknowledged) {
		writeq(control | PORT_CTRL_SFTRST_ACK, f->registers + PORT + PORT_HDR_CTRL);
	} else if (!reset && acknowledged) {
		writeq(0, f->registers + PORT_ERRORS + PORT_ERROR);
		writeq(0, f->registers + PORT_ERRORS + PORT_FIRST_ERROR);
		writeq(control & ~PORT_CTRL_SFTRST_ACK, f->registers + PORT + PORT_HDR_CTRL);
	}
	hrtimer_forward_now(timer, ns_to_ktime(TICK_NS));
	return HRTIMER_RESTART;
}

/* What is written here the port has as an error. */
static ssize_t port_error_store(struct device *dev, struct device_attribute *attr,
				const char *text, size_t size)
{
	struct fake *f = dev_get_drvdata(dev);
	u64 bits;
	int err = kstrtou64(text, 0, &bits);

	if (err)
		return err;
	writeq(bits, f->registers + PORT_ERRORS + PORT_ERROR);
	writeq(bits, f->registers + PORT_ERRORS + PORT_FIRST_ERROR);
	return size;
}
static DEVICE_ATTR_WO(port_error);

/* What is written here is the power state of the port: 6 stops the accelerator. */
static ssize_t port_power_store(struct device *dev, struct device_attribute *attr,
				const char *text, size_t size)
{
	struct fake *f = dev_get_drvdata(dev);
	u64 state;
	int err = kstrtou64(text, 0, &state);

	if (err)
		return err;
	writeq(FIELD_PREP(PORT_STS_PWR_STATE, state), f->registers + PORT + PORT_HDR_STS);
	return size;
}
static DEVICE_ATTR_WO(port_power);

static struct attribute *fake_attrs[] = {
	&dev_attr_port_error.attr,
	&dev_attr_port_power.attr,
	NULL
};
ATTRIBUTE_GROUPS(fake);

static int enumerate(struct pci_dev *pdev, struct fake *f)
{
	resource_size_t start = pci_resource_start(pdev, REGISTERS_BAR);
	resource_size_t size = pci_resource_len(pdev, REGISTERS_BAR);
	struct dfl_fpga_enum_info *info = dfl_fpga_enum_info_alloc(&pdev->dev);

	if (!info)
		return -ENOMEM;
	dfl_fpga_enum_info_add_dfl(info, start + FME, LIST_SIZE);
	dfl_fpga_enum_info_add_dfl(info, start + PORT, size - PORT);
	f->cdev = dfl_fpga_feature_devs_enumerate(info);
	dfl_fpga_enum_info_free(info);
	return PTR_ERR_OR_ZERO(f->cdev);
}

static int fake_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct fake *f = devm_kzalloc(&pdev->dev, sizeof(*f), GFP_KERNEL);
	int err;

	if (!f)
		return -ENOMEM;
	err = pcim_enable_device(pdev);
	if (err)
		return err;
	if (pci_resource_len(pdev, REGISTERS_BAR) < AFU + AFU_SIZE)
		return -ENODEV;
	/* Not requested: the DFL drivers do that, part by part. */
	f->registers = pcim_iomap(pdev, REGISTERS_BAR, 0);
	if (!f->registers)
		return -ENOMEM;
	write_card(f->registers);
	pci_set_drvdata(pdev, f);
	hrtimer_init(&f->timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
	f->timer.function = tick;
	hrtimer_start(&f->timer, ns_to_ktime(TICK_NS), HRTIMER_MODE_REL);
	err = enumerate(pdev, f);
	if (err)
		hrtimer_cancel(&f->timer);
	return err;
}

static void fake_remove(struct pci_dev *pdev)
{
	struct fake *f = pci_get_drvdata(pdev);

	dfl_fpga_feature_devs_remove(f->cdev);
	hrtimer_cancel(&f->timer);
}

/* Of ivshmem-plain. No MODULE_DEVICE_TABLE: it is loaded when a test says so. */
static const struct pci_device_id fake_ids[] = {
	{ PCI_DEVICE(PCI_VENDOR_ID_REDHAT_QUMRANET, 0x1110) },
	{}
};

static struct pci_driver fake_driver = {
	.name = "dfl-fake",
	.id_table = fake_ids,
	.probe = fake_probe,
	.remove = fake_remove,
	.dev_groups = fake_groups,
};
module_pci_driver(fake_driver);

MODULE_DESCRIPTION("An FPGA card with a DFL in the memory of ivshmem-plain");
MODULE_LICENSE("GPL");
