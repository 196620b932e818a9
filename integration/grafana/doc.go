// SPDX-License-Identifier: Apache-2.0

// Package grafana checks the dashboard against the types of Grafana's own development kit, and draws its layout for the
// documents. It is a separate Go module, because the kit is large. The test does not run Grafana, which is neither a Go
// module nor a package of Debian.
package grafana
