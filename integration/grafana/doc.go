// SPDX-License-Identifier: Apache-2.0

// Package grafana checks the dashboard against the types of Grafana's own development kit, and draws its layout for the
// documents. It is a module of its own, because the kit has the types of all panels. No Grafana runs here: it comes as no Go
// module, and Debian has no package of it.
package grafana
