//! Known repositories, the platforms for which they publish images, and the sizes of those images.
//!
//! Sizes are those of the registries' amd64 images, rounded.

use std::borrow::Cow;

use super::table::{ImageRow, Published};

/// Prefixes of repositories that mirror another registry, each with the prefix that it mirrors.
pub(super) const MIRRORS: [(&str, &str); 3] = [
    ("public.ecr.aws/docker/library/", "docker.io/library/"),
    ("mirror.gcr.io/library/", "docker.io/library/"),
    ("k8s.gcr.io/", "registry.k8s.io/"),
];

/// Parts of a tag that mean Windows in every repository. Windows builds in tags are recognized separately.
pub(super) const WINDOWS_TAG_PARTS: [&str; 4] =
    ["windows", "windowsservercore", "nanoserver", "servercore"];

/// Years in tags such as `windows-2022`. They mean a Windows release only after the part `windows`.
pub(super) const WINDOWS_YEARS: [(&str, &str); 4] = [
    ("2016", "ltsc2016"),
    ("2019", "ltsc2019"),
    ("2022", "ltsc2022"),
    ("2025", "ltsc2025"),
];

/// Prefixes of tag parts that mean Linux in every repository: distributions and their releases.
pub(super) const LINUX_TAG_PARTS: [&str; 22] = [
    "alpine",
    "amazonlinux",
    "azurelinux",
    "bookworm",
    "bullseye",
    "buster",
    "cbl",
    "debian",
    "distroless",
    "focal",
    "jammy",
    "linux",
    "mariner",
    "noble",
    "photon",
    "rocky",
    "slim",
    "trixie",
    "ubi8",
    "ubi9",
    "ubuntu",
    "wolfi",
];

const MB: u64 = 1_000_000;
/// The size of a Linux image that no row covers.
pub(super) const DEFAULT_LINUX_BYTES: u64 = 90 * MB;
/// The size of a Windows image that no row covers.
pub(super) const DEFAULT_WINDOWS_BYTES: u64 = 2_000 * MB;
/// The size of the base image Nano Server.
const NANO: u64 = 120 * MB;
/// The size of the base image Server Core.
const CORE: u64 = 1_750 * MB;

const fn row(
    repository: &'static str,
    published: Published,
    bytes: u64,
    base_bytes: u64,
) -> ImageRow {
    ImageRow {
        repository: Cow::Borrowed(repository),
        published,
        bytes,
        base_bytes,
    }
}

/// The known repositories. The first row that covers a repository counts, so more specific rows come first.
pub(super) static KNOWN: [ImageRow; 111] = [
    row(
        "mcr.microsoft.com/windows/nanoserver",
        Published::Windows(None),
        NANO,
        NANO,
    ),
    row(
        "mcr.microsoft.com/windows/servercore/iis",
        Published::Windows(None),
        1_930 * MB,
        CORE,
    ),
    row(
        "mcr.microsoft.com/windows/servercore/insider",
        Published::Windows(None),
        CORE,
        0,
    ),
    row(
        "mcr.microsoft.com/windows/servercore",
        Published::Windows(None),
        CORE,
        CORE,
    ),
    row(
        "mcr.microsoft.com/windows/server",
        Published::Windows(None),
        3_100 * MB,
        0,
    ),
    row(
        "mcr.microsoft.com/windows",
        Published::Windows(None),
        4_500 * MB,
        0,
    ),
    row(
        "mcr.microsoft.com/dotnet/framework/aspnet",
        Published::Windows(None),
        2_450 * MB,
        CORE,
    ),
    row(
        "mcr.microsoft.com/dotnet/framework/samples",
        Published::Windows(None),
        2_500 * MB,
        CORE,
    ),
    row(
        "mcr.microsoft.com/dotnet/framework",
        Published::Windows(None),
        2_300 * MB,
        CORE,
    ),
    row("mcr.microsoft.com/dotnet/sdk", Published::Both, 250 * MB, 0),
    row("mcr.microsoft.com/dotnet", Published::Both, 95 * MB, 0),
    row(
        "mcr.microsoft.com/mssql/server",
        Published::Linux,
        560 * MB,
        0,
    ),
    row(
        "mcr.microsoft.com/oss/kubernetes",
        Published::Both,
        40 * MB,
        0,
    ),
    row("registry.k8s.io/pause", Published::Both, MB, 0),
    row(
        "registry.k8s.io/e2e-test-images",
        Published::Both,
        55 * MB,
        0,
    ),
    row("mcr.microsoft.com/powershell", Published::Both, 110 * MB, 0),
    row("mcr.microsoft.com/azure-cli", Published::Linux, 260 * MB, 0),
    row("registry.k8s.io/sig-storage", Published::Both, 30 * MB, 0),
    row(
        "registry.k8s.io/csi-secrets-store",
        Published::Both,
        30 * MB,
        0,
    ),
    row("registry.k8s.io", Published::Linux, 40 * MB, 0),
    row("public.ecr.aws/eks-distro", Published::Linux, 40 * MB, 0),
    row("docker.io/library/busybox", Published::Linux, 2_200_000, 0),
    row("docker.io/library/alpine", Published::Linux, 3_800_000, 0),
    row("docker.io/library/nginx", Published::Linux, 72 * MB, 0),
    row("docker.io/library/httpd", Published::Linux, 59 * MB, 0),
    row("docker.io/library/redis", Published::Linux, 45 * MB, 0),
    row("docker.io/library/memcached", Published::Linux, 32 * MB, 0),
    row("docker.io/library/postgres", Published::Linux, 155 * MB, 0),
    row("docker.io/library/mysql", Published::Linux, 240 * MB, 0),
    row("docker.io/library/mariadb", Published::Linux, 105 * MB, 0),
    row("docker.io/library/rabbitmq", Published::Linux, 100 * MB, 0),
    row("docker.io/library/wordpress", Published::Linux, 250 * MB, 0),
    row("docker.io/library/ubuntu", Published::Linux, 30 * MB, 0),
    row("docker.io/library/debian", Published::Linux, 49 * MB, 0),
    row("docker.io/library/node", Published::Linux, 390 * MB, 0),
    row("docker.io/library/traefik", Published::Both, 48 * MB, 0),
    row("docker.io/library/golang", Published::Both, 300 * MB, 0),
    row("docker.io/library/mongo", Published::Both, 290 * MB, 0),
    row("docker.io/library/python", Published::Both, 360 * MB, 0),
    row(
        "docker.io/library/eclipse-temurin",
        Published::Both,
        190 * MB,
        0,
    ),
    row(
        "quay.io/prometheus/node-exporter",
        Published::Linux,
        12 * MB,
        0,
    ),
    row("docker.io/prom/node-exporter", Published::Linux, 12 * MB, 0),
    row("docker.io/library/nats", Published::Both, 12 * MB, 0),
    row("docker.io/library/hello-world", Published::Both, 20_000, 0),
    row("docker.io/fluent/fluent-bit", Published::Both, 45 * MB, 0),
    row(
        "docker.io/sigwindowstools",
        Published::Windows(None),
        150 * MB,
        0,
    ),
    row(
        "ghcr.io/prometheus-community/windows-exporter",
        Published::Windows(None),
        30 * MB,
        0,
    ),
    row("ghcr.io/prometheus-community", Published::Linux, 30 * MB, 0),
    row(
        "docker.io/calico/windows",
        Published::Windows(None),
        150 * MB,
        0,
    ),
    row(
        "docker.io/calico/cni-windows",
        Published::Windows(None),
        150 * MB,
        0,
    ),
    row(
        "docker.io/calico/node-windows",
        Published::Windows(None),
        150 * MB,
        0,
    ),
    row("docker.io/library/haproxy", Published::Linux, 45 * MB, 0),
    row("docker.io/library/caddy", Published::Both, 20 * MB, 0),
    row("docker.io/library/php", Published::Linux, 170 * MB, 0),
    row("docker.io/library/openjdk", Published::Both, 200 * MB, 0),
    row(
        "docker.io/library/amazoncorretto",
        Published::Linux,
        180 * MB,
        0,
    ),
    row(
        "docker.io/library/amazonlinux",
        Published::Linux,
        60 * MB,
        0,
    ),
    row("docker.io/library/centos", Published::Linux, 80 * MB, 0),
    row("docker.io/library/fedora", Published::Linux, 70 * MB, 0),
    row("docker.io/library/rockylinux", Published::Linux, 70 * MB, 0),
    row(
        "docker.io/library/elasticsearch",
        Published::Linux,
        600 * MB,
        0,
    ),
    row("docker.io/library/kibana", Published::Linux, 500 * MB, 0),
    row("docker.io/library/logstash", Published::Linux, 450 * MB, 0),
    row("docker.io/library/consul", Published::Linux, 50 * MB, 0),
    row("docker.io/library/vault", Published::Linux, 150 * MB, 0),
    row("docker.io/library/zookeeper", Published::Linux, 110 * MB, 0),
    row("docker.io/library/cassandra", Published::Linux, 140 * MB, 0),
    row("docker.io/library/influxdb", Published::Linux, 110 * MB, 0),
    row("docker.io/library/telegraf", Published::Linux, 160 * MB, 0),
    row("docker.io/library/registry", Published::Linux, 10 * MB, 0),
    row("docker.io/library/ruby", Published::Linux, 370 * MB, 0),
    row("docker.io/library/perl", Published::Linux, 360 * MB, 0),
    row("docker.io/library/rust", Published::Linux, 600 * MB, 0),
    row("docker.io/library/tomcat", Published::Linux, 200 * MB, 0),
    row("docker.io/library/adminer", Published::Linux, 45 * MB, 0),
    row("docker.io/library/ghost", Published::Linux, 200 * MB, 0),
    row("docker.io/library/nextcloud", Published::Linux, 420 * MB, 0),
    row("docker.io/library/kong", Published::Linux, 110 * MB, 0),
    row("docker.io/library/solr", Published::Linux, 330 * MB, 0),
    row("docker.io/library/couchdb", Published::Linux, 110 * MB, 0),
    row("docker.io/library/neo4j", Published::Linux, 280 * MB, 0),
    row("docker.io/library/docker", Published::Linux, 120 * MB, 0),
    row("docker.io/bitnami", Published::Linux, 120 * MB, 0),
    row("docker.io/bitnamilegacy", Published::Linux, 120 * MB, 0),
    row("docker.io/bitnamicharts", Published::Linux, MB, 0),
    row("docker.io/grafana", Published::Linux, 150 * MB, 0),
    row("docker.io/prom", Published::Linux, 90 * MB, 0),
    row("docker.io/rancher", Published::Linux, 60 * MB, 0),
    row("docker.io/calico", Published::Linux, 90 * MB, 0),
    row("docker.io/cilium", Published::Linux, 180 * MB, 0),
    row("docker.io/istio", Published::Linux, 80 * MB, 0),
    row("docker.io/envoyproxy", Published::Linux, 70 * MB, 0),
    row("docker.io/curlimages", Published::Linux, 8 * MB, 0),
    row("docker.io/kubernetesui", Published::Linux, 90 * MB, 0),
    row("docker.io/amazon", Published::Linux, 60 * MB, 0),
    row("docker.io/minio", Published::Linux, 60 * MB, 0),
    row("docker.io/hashicorp", Published::Linux, 90 * MB, 0),
    row("docker.io/apache", Published::Linux, 200 * MB, 0),
    row("docker.io/confluentinc", Published::Linux, 400 * MB, 0),
    row("docker.io/stefanprodan", Published::Linux, 20 * MB, 0),
    row("quay.io/prometheus", Published::Linux, 90 * MB, 0),
    row("quay.io/prometheus-operator", Published::Linux, 30 * MB, 0),
    row("quay.io/jetstack", Published::Linux, 30 * MB, 0),
    row("quay.io/argoproj", Published::Linux, 180 * MB, 0),
    row("quay.io/cilium", Published::Linux, 180 * MB, 0),
    row("quay.io/coreos", Published::Linux, 60 * MB, 0),
    row("gcr.io/distroless", Published::Linux, 20 * MB, 0),
    row("ghcr.io/fluxcd", Published::Linux, 40 * MB, 0),
    row("ghcr.io/kyverno", Published::Linux, 60 * MB, 0),
    row("public.ecr.aws/karpenter", Published::Linux, 60 * MB, 0),
    row("public.ecr.aws/eks", Published::Linux, 50 * MB, 0),
];
