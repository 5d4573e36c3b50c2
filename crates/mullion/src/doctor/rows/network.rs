//! Checks network features that EKS does not have for Windows nodes, and the free addresses in their subnets.

use std::collections::BTreeMap;

use mullion_engine::ip::Kind;
use serde_json::Value;

use super::{
    super::{
        findings::Findings,
        report::{few, names},
        snapshot::{Snapshot, Unknown, name_of, namespace_of},
    },
    instance_type, is_windows, list, nodes,
    pods::{self, windows_pods},
    selects,
    switches::settings,
};
use crate::why::start::address;

/// Checks DOC12: the cluster has IPv4 addresses.
pub(in super::super) fn ip_family(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let service = snapshot.find("Service", "default", "kubernetes");
    let address = service.as_ref().ok().and_then(|service| {
        let address = service.as_ref()?["spec"]["clusterIP"].as_str()?;
        Some(address.contains(':'))
    });
    // The cluster's own Service says it without any permission in AWS.
    let is_ipv6 = match (address, &snapshot.account.cluster) {
        (Some(is_ipv6), _) => is_ipv6,
        (None, Ok(cluster)) => cluster.ip_family == "ipv6",
        (None, Err(unknown)) => {
            let list = service.err().map(|own| format!("{} or ", own.0));
            return Err(Unknown(list.unwrap_or_default() + &unknown.0));
        }
    };
    let described = snapshot.account.cluster.as_ref();
    let is_ipv6 = is_ipv6 || described.is_ok_and(|cluster| cluster.ip_family == "ipv6");
    if !is_ipv6 {
        return Ok(Findings::state("IPv4"));
    }
    let mut found = Findings::default();
    found
        .fail("the cluster's addresses are IPv6: Windows nodes of EKS have IPv4 only")
        .advise("the family of a cluster cannot be changed; make a new one:")
        .command(
            "eksctl create cluster --name NAME   # with kubernetesNetworkConfig.ipFamily: IPv4",
        );
    Ok(found)
}

/// Checks DOC13: nothing that Windows cannot have is meant for it.
pub(in super::super) fn unsupported(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let mut found = Findings::state("none of them touches Windows");
    let pods = windows_pods(snapshot)?;
    custom_networking(snapshot, &mut found);
    match snapshot.all("SecurityGroupPolicy") {
        Ok(policies) => {
            for policy in policies {
                // A policy may select pods by their service accounts instead; such policies are not checked.
                let chosen = pods.iter().copied().filter(|pod| {
                    namespace_of(pod) == namespace_of(policy)
                        && selects(&policy["spec"]["podSelector"], &pod["metadata"]["labels"])
                        && policy["spec"]["podSelector"].is_object()
                });
                let chosen: Vec<_> = chosen.collect();
                if !chosen.is_empty() {
                    let (namespace, name) = (namespace_of(policy), name_of(policy));
                    found
                        .fail(format!("the SecurityGroupPolicy {namespace}/{name} selects the Windows pods {}: they get no security groups of their own", names(chosen)))
                        .advise("narrow its selector to Linux pods:")
                        .command(format!("kubectl -n {namespace} edit securitygrouppolicies.vpcresources.k8s.aws {name}"));
                }
            }
        }
        Err(unknown) => found.missing.push(unknown.0),
    }
    fargate(snapshot, &pods, &mut found);
    computed(snapshot, &mut found);
    Ok(found)
}

/// Reports custom networking. It is a setting of the agent on Linux nodes; Windows pods stay in the subnet of their node.
fn custom_networking(snapshot: &Snapshot, found: &mut Findings) {
    let agent = match snapshot.system("DaemonSet", "aws-node") {
        Ok(agent) => agent,
        Err(unknown) => return found.missing.push(unknown.0),
    };
    let containers = agent.map(|own| &own["spec"]["template"]["spec"]["containers"]);
    let mut settings = containers
        .into_iter()
        .flat_map(list)
        .flat_map(|own| list(&own["env"]));
    let is_on = settings
        .any(|own| own["name"] == "AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG" && own["value"] == "true");
    if is_on {
        found
            .warn("custom networking is on: pods of Windows nodes do not follow ENIConfigs, their addresses come from the node's own subnet")
            .advise("leave room in the subnets of the Windows nodes, or turn it off:")
            .command("kubectl -n kube-system set env daemonset aws-node AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG=false");
    }
}

fn fargate(snapshot: &Snapshot, pods: &[&Value], found: &mut Findings) {
    let profiles = match &snapshot.account.fargate {
        Ok(profiles) => profiles,
        Err(unknown) => return found.missing.push(unknown.0.clone()),
    };
    for (name, profile) in profiles {
        let is_chosen = |pod: &&&Value| {
            profile.selectors.iter().any(|own| {
                let labels = &pod["metadata"]["labels"];
                let has = |(key, value): (&String, &String)| labels[key.as_str()] == value.as_str();
                own.namespace == namespace_of(pod) && own.labels.iter().all(has)
            })
        };
        let chosen: Vec<_> = pods.iter().filter(is_chosen).copied().collect();
        if !chosen.is_empty() {
            found
                .fail(format!("the Fargate profile {name} selects the Windows pods {}: Fargate runs Linux only", names(chosen)))
                .advise("give it a selector that Windows pods do not match; a profile cannot be changed, so make it anew:")
                .command(format!("aws eks delete-fargate-profile --cluster-name CLUSTER --fargate-profile-name {name}"));
        }
    }
}

/// Reports Auto Mode and Hybrid Nodes that are meant for Windows; EKS has them for Linux only.
fn computed(snapshot: &Snapshot, found: &mut Findings) {
    match snapshot.all("NodePool") {
        Ok(pools) => {
            for pool in pools {
                let template = &pool["spec"]["template"]["spec"];
                let mut wants = list(&template["requirements"]);
                let windows = wants.any(|own| {
                    own["key"] == "kubernetes.io/os"
                        && list(&own["values"]).any(|value| value == "windows")
                });
                if windows && template["nodeClassRef"]["group"] == "eks.amazonaws.com" {
                    found
                        .fail(format!("the NodePool {} asks EKS Auto Mode for Windows nodes, which it does not have", name_of(pool)))
                        .advise("use a managed node group or Karpenter for Windows:")
                        .command(format!("kubectl delete nodepool {}", name_of(pool)));
                }
            }
        }
        Err(unknown) => found.missing.push(unknown.0),
    }
    let nodes = snapshot.all("Node").unwrap_or_default().iter();
    for node in nodes.filter(|node| is_windows(node)) {
        let kind = &node["metadata"]["labels"]["eks.amazonaws.com/compute-type"];
        if let Some(kind @ ("auto" | "hybrid")) = kind.as_str() {
            found
                .fail(format!("the Windows node {} is of the compute type {kind}, which is for Linux: the address controller leaves it out", name_of(node)))
                .command(format!("kubectl drain {} --ignore-daemonsets --delete-emptydir-data", name_of(node)));
        }
    }
}

/// Checks DOC14: the subnets of Windows nodes have room.
pub(in super::super) fn subnets(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let instances = snapshot.account.instances.clone()?.windows;
    if instances.is_empty() {
        return Ok(Findings::not_needed("there is no Windows node"));
    }
    let all = snapshot.account.subnets.clone()?;
    let settings = settings(snapshot)?;
    let kind = settings.kind(true);
    let targets = settings.targets(kind);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for instance in instances.values() {
        *counts.entry(&instance.subnet).or_default() += 1;
    }
    let mut found = Findings::default();
    let mut states = Vec::new();
    for (id, count) in counts {
        let Some(subnet) = all.get(id) else { continue };
        let (free, blocks) = (subnet.free_addresses, subnet.free_prefixes);
        let place = format!("subnet {id} ({}, {})", subnet.cidr, subnet.zone);
        states.push(format!(
            "{id} has {free} free addresses and {blocks} free /28"
        ));
        let smaller = "kubectl -n kube-system patch configmap amazon-vpc-cni --type merge -p '{\"data\":{\"windows-warm-ip-target\":\"1\",\"windows-minimum-ip-target\":\"1\"}}'";
        match kind {
            Kind::Prefix if blocks == 0 => {
                // So many free addresses would be a whole block if they were neighbours.
                let why = if free >= 16 {
                    format!(
                        "has no free /28 block, though {free} addresses are free: it is fragmented"
                    )
                } else {
                    "has no free /28 block".to_owned()
                };
                found
                    .fail(format!("{place} {why}; no Windows node there gets another prefix"))
                    .advise("reserve blocks in a subnet for prefixes, or use a new subnet for the nodes:")
                    .command(format!("aws ec2 create-subnet-cidr-reservation --subnet-id {id} --reservation-type prefix --cidr CIDR"));
            }
            Kind::Prefix if blocks < count => {
                found
                    .warn(format!("{place} has {blocks} free /28 blocks for {count} Windows nodes"))
                    .advise("reserve blocks for prefixes, or use a further subnet:")
                    .command(format!("aws ec2 create-subnet-cidr-reservation --subnet-id {id} --reservation-type prefix --cidr CIDR"));
            }
            Kind::Address if free == 0 => {
                found
                    .fail(format!(
                        "{place} has no free address: no Windows node there gets another one"
                    ))
                    .advise("use a further subnet for the nodes, or keep fewer addresses warm:")
                    .command(smaller);
            }
            Kind::Address if (free as i64) < targets.warm_ip * count as i64 => {
                found
                    .warn(format!("{place} has {free} free addresses, and its {count} Windows nodes want {} warm each", targets.warm_ip))
                    .advise("use a further subnet for the nodes, or keep fewer addresses warm:")
                    .command(smaller);
            }
            Kind::Prefix | Kind::Address => {}
        }
    }
    found.state = few(states);
    Ok(found)
}

/// Checks DOC15: prefix delegation works on every node.
pub(in super::super) fn prefixes(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let nodes = nodes(snapshot, true)?;
    let settings = settings(snapshot)?;
    let is_on = settings.windows_ipam && settings.prefix_delegation;
    let mut found = if is_on {
        Findings::state("prefixes are on, and every node has them")
    } else {
        Findings::not_needed("prefix delegation is off")
    };
    for node in nodes {
        let (name, kind) = (name_of(node), instance_type(node));
        let is_old = mullion_cloud::catalogue::get(kind).is_some_and(|own| !own.is_nitro());
        if is_on && is_old {
            found
                .warn(format!("node {name} is a {kind}, which is not built on Nitro: it keeps single addresses"))
                .advise("replace it by a type of a newer generation:")
                .command(format!("kubectl drain {name} --ignore-daemonsets --delete-emptydir-data"));
            continue;
        }
        // The annotation of an address from a prefix ends in /32, that of a single address in the prefix length of the
        // subnet.
        let wanted = if is_on { "/32" } else { "/" };
        let is_other = |pod: &&&Value| {
            address(pod).is_some_and(|text| {
                let is_prefix = text.ends_with("/32");
                is_prefix != (wanted == "/32")
            })
        };
        let own = pods::on_node(snapshot, name)?;
        let others: Vec<_> = own.iter().filter(is_other).copied().collect();
        if !others.is_empty() {
            let mode = if is_on {
                "single addresses, from before prefixes were turned on"
            } else {
                "addresses of prefixes, from before they were turned off"
            };
            found
                .warn(format!("on node {name} the pods {} have {mode}: the node has room for fewer pods than it will", names(others)))
                .advise("replace the node when its pods can move:")
                .command(format!("kubectl drain {name} --ignore-daemonsets --delete-emptydir-data"));
        }
    }
    Ok(found)
}
