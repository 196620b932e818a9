// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// recorded returns a recording of widgets with these numbers, in the format of umockdev-record.
func recorded(numbers ...int) string {
	blocks := []string{"# written by a test\n"}
	for _, n := range numbers {
		blocks = append(blocks, fmt.Sprintf(`P: /devices/virtual/widget/widget%[1]d
N: widget%[1]d
E: DEVNAME=/dev/widget%[1]d
E: SUBSYSTEM=widget
E: MAJOR=240
E: MINOR=%[1]d
E: ID_SERIAL=widget-W%[1]d
E: ID_SERIAL_SHORT=W%[1]d
A: dev=240:%[1]d\n
`, n))
	}
	return strings.Join(blocks, "\n")
}

// widgets returns a recording of widgets 0 to n-1.
func widgets(n int) string {
	numbers := make([]int, n)
	for i := range numbers {
		numbers[i] = i
	}
	return recorded(numbers...)
}

// widgetID is the device ID of a widget.
func widgetID(n int) string { return fmt.Sprintf("node-widget-W%d-widget", n) }

// grace is the time in seconds that containers have to stop. With zero, the API server would not wait for the kubelet.
var grace int64 = 1

// pod returns a pod with one container that requests widgets and runs until it is deleted.
func pod(node *Node, name string, count int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: space},
		Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{corev1.LabelHostname: node.Name},
			TerminationGracePeriodSeconds: &grace,
			RestartPolicy:                 corev1.RestartPolicyNever,
			Containers:                    []corev1.Container{asking("main", count)},
		},
	}
}

// asking returns a container that requests widgets. With the command "exit CODE", the container ends at once.
func asking(name string, count int, command ...string) corev1.Container {
	c := corev1.Container{Name: name, Image: "none", ImagePullPolicy: corev1.PullIfNotPresent, Command: command}
	if count > 0 {
		c.Resources.Limits = corev1.ResourceList{widget: *resource.NewQuantity(int64(count), resource.DecimalSI)}
	}
	return c
}

func isGone(err error) bool { return apierrors.IsNotFound(err) }
