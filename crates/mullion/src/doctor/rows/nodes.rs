//! Checks what Windows nodes report about themselves.

use std::time::Duration;

use jiff::Timestamp;
use mullion_api::{ami::Os, labels};
use mullion_cloud::catalogue;
use mullion_engine::{
    ip::{Kind, PREFIX_SIZE},
    windows::Build,
};
use serde_json::{Value, json};

use super::{
    super::{
        change::Change,
        findings::Findings,
        report::{counted, few, names},
        snapshot::{Snapshot, Unknown, name_of},
    },
    access::{cluster_minor, minor, proxy_faults},
    instance_type, is_ready, is_simulated, list, nodes,
    switches::settings,
};
use crate::check::subject::amount;

/// How long a kubelet may take to report a change of its node. It does so every 10 seconds; this leaves some room.
const STATUS_PERIOD: Duration = Duration::from_secs(60);
/// The bytes of memory that Windows and its services need in addition to the pods (EKS best practices).
const SYSTEM_MEMORY: f64 = 2.0 * 1024.0 * 1024.0 * 1024.0;

/// Returns how many pods a Windows node of this type has addresses for; `None` if EKS does not run Windows on the type.
pub(super) fn addresses(name: &str, prefix_delegation: bool) -> Option<usize> {
    let kind = catalogue::get(name).filter(|kind| kind.runs(Os::Windows))?;
    // The first address of the interface belongs to the node.
    let slots = kind.ipv4_per_eni.saturating_sub(1) as usize;
    Some(if prefix_delegation && kind.is_nitro() {
        slots * PREFIX_SIZE
    } else {
        slots
    })
}

fn advertised(node: &Value, field: &str) -> Option<usize> {
    node["status"][field][labels::PRIVATE_IPV4]
        .as_str()?
        .parse()
        .ok()
}

/// Returns whether a node has been ready for longer than its kubelet takes to report a change.
pub(super) fn has_settled(node: &Value, now: Timestamp) -> bool {
    let ready = list(&node["status"]["conditions"]).find(|own| own["type"] == "Ready");
    let since = ready.and_then(|own| own["lastTransitionTime"].as_str());
    let since = since.and_then(|own| own.parse::<Timestamp>().ok());
    since.is_none_or(|since| {
        Duration::try_from(now.duration_since(since)).is_ok_and(|age| age > STATUS_PERIOD)
    })
}

/// Checks DOC04: Windows nodes advertise their addresses.
pub(in super::super) fn capacity(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let nodes = nodes(snapshot, true)?;
    let ready: Vec<_> = nodes.into_iter().filter(|node| is_ready(node)).collect();
    if ready.is_empty() {
        return Ok(Findings::not_needed("no Windows node is ready"));
    }
    let settings = settings(snapshot)?;
    if !settings.windows_ipam {
        return Ok(Findings::not_needed("Windows IP management is off (DOC01)"));
    }
    let prefixes = settings.kind(true) == Kind::Prefix;
    let mut found = Findings::default();
    let mut sum = 0;
    for node in &ready {
        let (name, kind) = (name_of(node), instance_type(node));
        let has = advertised(node, "capacity");
        sum += has.unwrap_or(0);
        let Some(expected) = addresses(kind, prefixes) else {
            let text = match kind {
                "" => format!(
                    "node {name} does not say its instance type, so that its addresses cannot be counted"
                ),
                kind => format!(
                    "node {name} is a {kind}, which the address controller does not know for Windows: its pods get no address"
                ),
            };
            found
                .fail(text)
                .advise("replace the node by one of a type such as m5.large");
            continue;
        };
        match has {
            None | Some(0) => {
                found
                    .fail(format!("node {name} ({kind}) advertises no {}: no pod with an address fits there", labels::PRIVATE_IPV4))
                    .advise("see what the controller says of the node, and replace it if nothing helps:")
                    .command(format!("kubectl describe node {name}"))
                    .command(format!("kubectl drain {name} --ignore-daemonsets --delete-emptydir-data"));
            }
            Some(has) if has < expected => {
                found
                    .warn(format!("node {name} ({kind}) advertises {has} addresses where a new one has {expected}: it was made in the other mode, or its interface holds other addresses"))
                    .advise("replace the node when its pods can move:")
                    .command(format!("kubectl drain {name} --ignore-daemonsets --delete-emptydir-data"));
            }
            Some(has)
                if advertised(node, "allocatable") != Some(has)
                    && has_settled(node, snapshot.now) =>
            {
                found
                    .warn(format!("node {name} has {has} addresses, and its kubelet has not told the scheduler so"))
                    .advise("it does with its next status; if it stays so, restart the service kubelet on the node");
            }
            Some(_) => {}
        }
    }
    found.state = format!(
        "{} on {}",
        counted(sum, "address", "addresses"),
        counted(ready.len(), "Windows node", "Windows nodes")
    );
    Ok(found)
}

/// Checks DOC16: Windows nodes are labelled, tainted alike and up to date.
pub(in super::super) fn makes(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let nodes = nodes(snapshot, true)?;
    if nodes.is_empty() {
        return Ok(Findings::not_needed("there is no Windows node"));
    }
    let mut found = Findings::default();
    let mut builds = Vec::new();
    let server = snapshot.version.as_deref().and_then(minor);
    for node in &nodes {
        builds.extend(labelled(node, server, &mut found));
        skew(node, server, cluster_minor(snapshot), &mut found);
    }
    builds.sort();
    builds.dedup();
    found.state = format!(
        "{} of {}",
        counted(nodes.len(), "node", "nodes"),
        few(builds.iter().map(ToString::to_string))
    );
    taints(&nodes, &mut found);
    images(snapshot, &nodes, &mut found);
    Ok(found)
}

/// Checks the labels of a node, and returns its Windows build.
fn labelled(node: &Value, server: Option<u32>, found: &mut Findings) -> Option<Build> {
    let (name, own) = (name_of(node), &node["metadata"]["labels"]);
    let kernel: Option<Build> = node["status"]["nodeInfo"]["kernelVersion"]
        .as_str()
        .and_then(|own| own.parse().ok());
    let label = own[labels::WINDOWS_BUILD].as_str();
    // The kernel version is what runs; the label may be wrong.
    let build = kernel.or_else(|| label?.parse().ok())?;
    let mut wrong = serde_json::Map::new();
    let expected = [
        (labels::WINDOWS_BUILD, build.to_string()),
        (labels::ARCH, "amd64".to_owned()),
    ];
    for (key, value) in expected {
        if own[key] != value.as_str() {
            wrong.insert(key.to_owned(), value.into());
        }
    }
    if !wrong.is_empty() {
        let keys: Vec<_> = wrong.keys().cloned().collect();
        found
            .fail(format!(
                "node {name} lacks the right label {}: pods that select it do not land there",
                keys.join(", ")
            ))
            .with_fix(Change::merge(node, json!({"metadata": {"labels": wrong}})));
    }
    if ![Build::SERVER_2019, Build::SERVER_2022, Build::SERVER_2025].contains(&build) {
        found
            .warn(format!(
                "node {name} runs build {build}, for which EKS has no AMI"
            ))
            .advise("replace it by a node of Windows Server 2019, 2022 or 2025");
    }
    if build == Build::SERVER_2025 && server.is_some_and(|own| own < 35) {
        found
            .fail(format!(
                "node {name} runs Windows Server 2025, which needs Kubernetes 1.35"
            ))
            .advise("replace it by a node of Windows Server 2022, or bring the cluster to 1.35");
    }
    Some(build)
}

/// Reports a kubelet that is newer than the API server, or more than three minor versions older than the cluster. A simulated API server
/// may be newer than the version that EKS describes, which is the version of the nodes.
fn skew(node: &Value, server: Option<u32>, cluster: Option<u32>, found: &mut Findings) {
    let name = name_of(node);
    let kubelet = node["status"]["nodeInfo"]["kubeletVersion"].as_str();
    let (Some(server), Some(kubelet)) = (server, kubelet.and_then(minor)) else {
        return;
    };
    let cluster = cluster.map_or(server, |cluster| cluster.min(server));
    let text = match kubelet {
        own if own > server => {
            format!(
                "the kubelet of node {name} is of 1.{own}, newer than the API server (1.{server})"
            )
        }
        own if own + 3 < cluster => format!(
            "the kubelet of node {name} is of 1.{own}, more than three versions behind the cluster (1.{cluster})"
        ),
        _ => return,
    };
    found
        .fail(text)
        .advise("replace the node by one of the cluster's version:")
        .command(format!(
            "kubectl drain {name} --ignore-daemonsets --delete-emptydir-data"
        ));
}

/// Reports taints that some Windows nodes have and others lack.
fn taints(nodes: &[&Value], found: &mut Findings) {
    let of = |node: &Value| {
        let own = list(&node["spec"]["taints"]).filter_map(|own| {
            let key = own["key"].as_str()?;
            let value = own["value"].as_str().unwrap_or_default();
            let effect = own["effect"].as_str()?;
            // Taints of the control plane and of Karpenter come and go.
            let is_own = key.starts_with("node.kubernetes.io/") || key.starts_with("karpenter.sh/");
            (!is_own).then(|| format!("{key}={value}:{effect}"))
        });
        own.collect::<Vec<_>>()
    };
    let mut all: Vec<_> = nodes.iter().flat_map(|node| of(node)).collect();
    all.sort();
    all.dedup();
    for taint in all {
        let without: Vec<_> = nodes
            .iter()
            .copied()
            .filter(|node| !of(node).contains(&taint))
            .collect();
        if let [first, ..] = without.as_slice() {
            let problem = found.warn(format!("some Windows nodes have the taint {taint}, {} has not: pods without an operating system may land there", names(without.iter().copied())));
            problem.advise(
                "give all Windows nodes the same taints, in their node group or NodePool too:",
            );
            problem.command(format!("kubectl taint node {} {taint}", name_of(first)));
        }
    }
}

/// Reports AMIs that are withdrawn, or two releases behind the newest.
fn images(snapshot: &Snapshot, nodes: &[&Value], found: &mut Findings) {
    let (instances, images) = match (&snapshot.account.instances, &snapshot.account.images) {
        (Ok(instances), Ok(images)) => (&instances.windows, images),
        (Err(unknown), _) | (_, Err(unknown)) => return found.missing.push(unknown.0.clone()),
    };
    for node in nodes {
        let name = name_of(node);
        let id = node["spec"]["providerID"].as_str();
        let id = id.and_then(mullion_cloud::instance_id);
        let ami = id
            .and_then(|id| instances.get(&*id.0))
            .map(|own| own.image.as_str());
        let Some((ami, image)) = ami.and_then(|ami| Some((ami, images.get(ami)?))) else {
            continue;
        };
        let newer = images
            .values()
            .filter(|own| own.line == image.line && own.released > image.released);
        let newer = newer.count();
        let text = match (image.withdrawn, newer) {
            (true, _) => format!(
                "AWS has withdrawn {ami} of node {name}: no further node can be launched from it"
            ),
            (false, 2..) => format!(
                "node {name} runs {ami} of {}, and {newer} newer AMIs of {} are out",
                image.released, image.line
            ),
            _ => continue,
        };
        found
            .warn(text)
            .advise("bring the node group or node class to the newest AMI; a managed group does it with:")
            .command("aws eks update-nodegroup-version --cluster-name CLUSTER --nodegroup-name GROUP");
    }
}

/// Checks DOC17: kubelet and kube-proxy of Windows nodes are healthy.
pub(in super::super) fn health(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let nodes = nodes(snapshot, true)?;
    if nodes.is_empty() {
        return Ok(Findings::not_needed("there is no Windows node"));
    }
    let mut found = Findings::state("ready, and nothing is known that makes kube-proxy crash");
    let faults = proxy_faults(snapshot);
    if !faults.is_empty() {
        let ids = faults.join(", ");
        found
            .fail(format!("kube-proxy of Windows nodes crashes while the nodes stay Ready: it may not read Services ({ids})"))
            .advise(format!("mend {ids}, then start it again on nodes where it has given up (PowerShell):"))
            .command("Restart-Service kube-proxy");
    }
    for node in nodes.iter().filter(|node| !is_ready(node)) {
        let name = name_of(node);
        let condition = list(&node["status"]["conditions"]).find(|own| own["type"] == "Ready");
        let why = condition.and_then(|own| own["message"].as_str());
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        found
            .fail(format!("node {name} is not ready{why}"))
            .advise("look into its event log EKS, which keeps 200 MB, and restart the services kubelet and kube-proxy there (PowerShell):")
            .command("Get-EventLog -LogName EKS -Newest 50")
            .command("Restart-Service kubelet, kube-proxy");
    }
    if !is_simulated(snapshot) {
        found.missing.push("`mullion doctor --network`: a node stays Ready when its kube-proxy has crashed, and only pods there notice it".to_owned());
    }
    Ok(found)
}

/// Checks DOC18: Windows nodes reserve 2 GiB for the system.
pub(in super::super) fn reserves(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let nodes = nodes(snapshot, true)?;
    if nodes.is_empty() {
        return Ok(Findings::not_needed("there is no Windows node"));
    }
    let mut found = Findings::state("at least 2 GiB of every Windows node are kept from pods");
    let kept = |node: &&&Value| {
        let all = amount(&node["status"]["capacity"]["memory"])?;
        let pods = amount(&node["status"]["allocatable"]["memory"])?;
        Some(all - pods)
    };
    let small = nodes
        .iter()
        .filter(|node| kept(node).is_some_and(|own| own < SYSTEM_MEMORY));
    let small: Vec<_> = small.copied().collect();
    if !small.is_empty() {
        let least = nodes
            .iter()
            .filter_map(|node| kept(&node))
            .fold(f64::INFINITY, f64::min);
        found
            .warn(format!(
                "less than 2 GiB of memory is kept from pods on {} ({:.0} MiB at the least): Windows kills nothing when memory runs out, the node pages",
                names(small),
                least / 1024.0 / 1024.0
            ))
            .advise("start the kubelet of new nodes with reserves, in a group's user data or with Karpenter's kubelet.systemReserved, and keep the page file on:")
            .command("-KubeletExtraArgs '--kube-reserved memory=0.5Gi,ephemeral-storage=1Gi --system-reserved memory=1.5Gi,ephemeral-storage=1Gi'");
    }
    Ok(found)
}
