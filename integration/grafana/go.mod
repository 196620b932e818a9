module github.com/metalplug/metalplug/integration/grafana

go 1.26.11

require github.com/grafana/grafana-foundation-sdk/go v0.0.22
