// SPDX-License-Identifier: Apache-2.0

// This file lets the compiler accept the body-less function in link.go.
