// SPDX-License-Identifier: GPL-2.0-only
/*
 * What udev's rules of metalplug see of NVIDIA's drivers, and nothing else: a
 * PCI driver of the name nvidia, its file about each GPU in /proc, a module of
 * the name nvidia_uvm and the numbers of its nodes. The driver takes what is
 * bound to it by driver_override. No node is made, which NVIDIA's drivers leave
 * to nvidia-modprobe.
 */

#include <linux/fs.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

#define NVIDIA_MAJOR 195
#define MINOR_OF_GPU 3

static const struct file_operations no_operations = { .owner = THIS_MODULE };
static struct proc_dir_entry *top, *gpus;
static int uvm_major;

static int information(struct seq_file *s, void *unused)
{
	seq_printf(s, "Model: \t\t None\nDevice Minor: \t %d\n", MINOR_OF_GPU);
	return 0;
}

static int nvidia_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct proc_dir_entry *gpu = proc_mkdir(pci_name(pdev), gpus);

	if (!gpu || !proc_create_single("information", 0444, gpu, information))
		return -ENOMEM;
	return 0;
}

static void nvidia_remove(struct pci_dev *pdev)
{
	remove_proc_subtree(pci_name(pdev), gpus);
}

static const struct pci_device_id nvidia_ids[] = { {} };

static struct pci_driver nvidia_driver = {
	.name = "nvidia",
	.id_table = nvidia_ids,
	.probe = nvidia_probe,
	.remove = nvidia_remove,
};

static void undo(void)
{
	if (uvm_major > 0)
		unregister_chrdev(uvm_major, "nvidia-uvm");
	unregister_chrdev(NVIDIA_MAJOR, "nvidia");
	proc_remove(top);
}

static int __init nvidia_init(void)
{
	int err = register_chrdev(NVIDIA_MAJOR, "nvidia", &no_operations);

	if (err < 0)
		return err;
	top = proc_mkdir("driver/nvidia", NULL);
	gpus = top ? proc_mkdir("gpus", top) : NULL;
	uvm_major = register_chrdev(0, "nvidia-uvm", &no_operations);
	err = !gpus ? -ENOMEM : uvm_major < 0 ? uvm_major : pci_register_driver(&nvidia_driver);
	if (err)
		undo();
	return err;
}
module_init(nvidia_init);

static void __exit nvidia_exit(void)
{
	pci_unregister_driver(&nvidia_driver);
	undo();
}
module_exit(nvidia_exit);

MODULE_DESCRIPTION("What udev's rules see of NVIDIA's drivers");
MODULE_LICENSE("GPL");
