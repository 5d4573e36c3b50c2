//! Makes the objects of a measurement: Services, server pods that answer, and client pods with a container for each path of traffic.
//!
//! A client container is one call of curl, which the kubelet repeats while it fails. The result is its exit code and its log, so the
//! Kubernetes API is all that is needed to read it.

use mullion_api::{ami::Os, labels};
use serde_json::{Value, json};

use super::{Host, Hosts, Source, Target, TrafficPath};

/// The port of the server pods; the path `/hostname` returns the pod's name.
const PORT: u16 = 8080;
/// The timeout of one call, in seconds.
pub(super) const CALL_PATIENCE: u32 = 5;
/// A well-known address outside of every cluster; the next constant is such a name.
const OUTSIDE_ADDRESS: &str = "https://1.1.1.1";
const OUTSIDE_NAME: &str = "https://registry.k8s.io";
/// The `activeDeadlineSeconds` of the pods, so that they end even if the doctor is killed during a measurement.
const LIFE: u32 = 900;

/// The addresses of the server pods and their Services.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    /// The addresses of the pods, by name.
    pub(super) pods: std::collections::BTreeMap<String, String>,
    /// The addresses and NodePorts of the Services, by name.
    pub(super) services: std::collections::BTreeMap<String, (String, u64)>,
}

/// Returns the namespace. It allows the Pod Security level `privileged`, which pods on the host's network need.
pub(super) fn namespace(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {
        "pod-security.kubernetes.io/enforce": "privileged",
        "app.kubernetes.io/created-by": "mullion-doctor",
        "mullion.dev/place-by-image": "false",
    }}})
}

/// Returns the Service for the server pods of an operating system, whose name it has.
pub(super) fn service(os: Os) -> Value {
    json!({
        "metadata": {"name": os.as_str()},
        "spec": {
            "type": "NodePort",
            "selector": {"answers": os.as_str()},
            "ports": [{"port": 80, "targetPort": PORT}],
        },
    })
}

/// Returns the server pods, one on each host: `linux-1`, `linux-2`, `windows-1`.
pub(super) fn servers(hosts: &Hosts, image: &str) -> Vec<Value> {
    let pods = hosts.iter().flat_map(|(&os, own)| {
        own.iter().enumerate().map(move |(index, host)| {
            let name = server_name(os, index);
            let container = json!({
                "name": "answer", "image": image,
                "args": ["netexec", format!("--http-port={PORT}")],
            });
            let mut pod = pod(&name, os, host, vec![container]);
            pod["metadata"]["labels"] = json!({"answers": os.as_str()});
            pod
        })
    });
    pods.collect()
}

fn server_name(os: Os, index: usize) -> String {
    format!("{os}-{}", index + 1)
}

/// Returns a client pod for each place from which paths start; it has a container for each of the paths, in their order.
pub(super) fn clients(
    hosts: &Hosts,
    ways: &[TrafficPath],
    places: &Places,
    image: &str,
    home: &str,
) -> Vec<Value> {
    let mut pods = Vec::new();
    for (&os, own) in hosts {
        for source in [Source::Node, Source::Pod] {
            let ways = ways.iter().filter(|way| way.is_from(os, source));
            let containers = ways.enumerate().map(|(index, way)| {
                json!({
                    "name": container_name(index), "image": image,
                    "command": call(way, &url(way, hosts, places, home)),
                })
            });
            let mut pod = pod(&client_name(os, source), os, &own[0], containers.collect());
            if source == Source::Node {
                pod["spec"]["hostNetwork"] = true.into();
                if os == Os::Windows {
                    pod["spec"]["securityContext"] = json!({"windowsOptions": {
                        "hostProcess": true, "runAsUserName": "NT AUTHORITY\\SYSTEM",
                    }});
                }
            }
            pods.push(pod);
        }
    }
    pods
}

/// Returns the name of the client pod for a place.
pub(super) fn client_name(os: Os, source: Source) -> String {
    match source {
        Source::Node => format!("{os}-node"),
        Source::Pod => format!("{os}-pod"),
    }
}

/// Returns the name of the container that tests the path with this index among those of its pod.
pub(super) fn container_name(index: usize) -> String {
    format!("way-{index}")
}

impl TrafficPath {
    /// Returns the name of the pod that must answer, or the common prefix of all pods that may; empty for targets outside of the cluster.
    pub(super) fn answers(&self) -> String {
        match self.target {
            Target::Pod { os, on_same_node } => {
                // The client pods are on the first host of their operating system.
                server_name(os, usize::from(os == self.os && !on_same_node))
            }
            Target::Service(os)
            | Target::ShortName(os)
            | Target::FullName(os)
            | Target::NodePort(os) => format!("{os}-"),
            Target::OutsideAddress | Target::OutsideName => String::new(),
        }
    }
}

fn url(way: &TrafficPath, hosts: &Hosts, places: &Places, home: &str) -> String {
    let service = |os: Os| {
        places
            .services
            .get(os.as_str())
            .cloned()
            .unwrap_or_default()
    };
    let authority = match way.target {
        Target::Pod { .. } => {
            let address = places.pods.get(&way.answers());
            format!("{}:{PORT}", address.map_or("", String::as_str))
        }
        Target::Service(os) => service(os).0,
        Target::ShortName(os) => os.as_str().to_owned(),
        Target::FullName(os) => format!("{os}.{home}.svc.cluster.local"),
        Target::NodePort(os) => {
            let address = hosts[&os].first().and_then(|host| host.address.as_deref());
            format!("{}:{}", address.unwrap_or_default(), service(os).1)
        }
        Target::OutsideAddress => return OUTSIDE_ADDRESS.to_owned(),
        Target::OutsideName => return OUTSIDE_NAME.to_owned(),
    };
    format!("http://{authority}/hostname")
}

/// Returns the command of the call. It prints the body (unless the target is outside of the cluster), then `;` and the seconds that the
/// call took.
fn call(way: &TrafficPath, url: &str) -> Vec<String> {
    // HostProcess containers call the curl of Windows, others that of the image.
    let (program, nowhere) = match way.os {
        Os::Linux => ("curl", "/dev/null"),
        Os::Windows => ("curl.exe", "NUL"),
    };
    let patience = CALL_PATIENCE.to_string();
    // `-k`, because the question is whether an answer comes, not whose certificate it has.
    let mut words = vec![program, "-sS", "-k", "-m", &patience];
    if way.answers().is_empty() {
        words.extend(["-o", nowhere]);
    }
    words.extend(["-w", ";%{time_total}", url]);
    words.into_iter().map(str::to_owned).collect()
}

/// Returns a pod that runs on a host, whatever taints the host has.
fn pod(name: &str, os: Os, host: &Host, containers: Vec<Value>) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "os": {"name": os.as_str()},
            "nodeSelector": {labels::OS: os.as_str(), labels::HOSTNAME: host.host_name},
            "tolerations": [{"operator": "Exists"}],
            "restartPolicy": "OnFailure",
            "activeDeadlineSeconds": LIFE,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "containers": containers,
        },
    })
}
