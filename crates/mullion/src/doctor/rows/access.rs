//! Checks what EKS and IAM know: versions, the cluster's policies, and the access of Windows nodes to the cluster.

use std::collections::BTreeSet;

use mullion_api::{
    account::{CONTROLLER_POLICY, EC2_WINDOWS, EksCluster, role_arn, role_name},
    ami::Os,
    karpenter::EC2NodeClassSpec,
};
use mullion_cloud::{AccountChange, family_of};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    super::{
        change::Change,
        findings::{Findings, Outcome},
        snapshot::{Snapshot, Unknown},
    },
    list,
    system::{self, PROXY_GROUP},
};
use crate::check::{
    path::Path,
    yaml::edit::{self, Edit},
};

/// The groups that aws-auth must give the role of Windows nodes.
const GROUPS: [&str; 3] = ["system:bootstrappers", "system:nodes", PROXY_GROUP];

/// The first platform version whose control plane runs the address controller, by minor version; in later minor versions all do.
const FIRST_PLATFORMS: [(u32, u32); 8] = [
    (24, 2),
    (25, 1),
    (26, 1),
    (27, 1),
    (28, 1),
    (29, 1),
    (30, 2),
    (31, 4),
];

/// Returns the minor version of a text such as `v1.36.2-eks-abc` or `1.36`.
pub(super) fn minor(version: &str) -> Option<u32> {
    let rest = version.trim_start_matches('v').strip_prefix("1.")?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// Returns the cluster's minor version: the one that EKS describes (which also the nodes of a simulated cluster have), or else that of the
/// API server.
pub(super) fn cluster_minor(snapshot: &Snapshot) -> Option<u32> {
    let described = snapshot.account.cluster.as_ref().ok();
    let described = described.map(|cluster| cluster.version.as_str());
    minor(described.or(snapshot.version.as_deref())?)
}

/// Checks DOC08: Kubernetes and its platform version can run Windows.
pub(in super::super) fn versions(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let described = &snapshot.account.cluster;
    let Some(minor) = cluster_minor(snapshot) else {
        return Err(Unknown("GET /version".to_owned()));
    };
    let mut found = Findings::state(format!("Kubernetes 1.{minor}"));
    let oldest = FIRST_PLATFORMS[0].0;
    if minor < oldest {
        found
            .fail(format!(
                "Kubernetes 1.{minor} has no address controller in its control plane"
            ))
            .command(format!(
                "aws eks update-cluster-version --name CLUSTER --kubernetes-version 1.{oldest}"
            ));
        return Ok(found);
    }
    let Some((_, first)) = FIRST_PLATFORMS.iter().find(|(own, _)| *own == minor) else {
        return Ok(found);
    };
    let cluster = described.clone()?;
    let platform = &cluster.platform_version;
    found.state += &format!(", platform {platform}");
    let number: Option<u32> = platform
        .strip_prefix("eks.")
        .and_then(|own| own.parse().ok());
    if number.is_some_and(|own| own < *first) {
        found
            .fail(format!("platform version {platform} of Kubernetes 1.{minor} cannot run Windows: eks.{first} is the first that can"))
            .advise("EKS brings the platform up to date by itself; a new version of Kubernetes brings it now:")
            .command(format!(
                "aws eks update-cluster-version --name {} --kubernetes-version 1.{}",
                cluster.name,
                minor + 1
            ));
    }
    Ok(found)
}

/// Checks DOC09: the role of the cluster may give addresses.
pub(in super::super) fn cluster_policies(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let cluster = snapshot.account.cluster.clone()?;
    let policies = snapshot.account.policies.clone()?;
    let role = cluster.role;
    if policies.iter().any(|own| own == CONTROLLER_POLICY) {
        return Ok(Findings::state(format!("{role} has {CONTROLLER_POLICY}")));
    }
    let mut found = Findings::default();
    let change = AccountChange::AttachPolicy {
        role: role.clone(),
        policy: CONTROLLER_POLICY.to_owned(),
    };
    found
        .fail(format!("the cluster's role {role} lacks the policy {CONTROLLER_POLICY}: the control plane may not give Windows nodes addresses"))
        .with_fix(Change::Account(change));
    Ok(found)
}

/// The IAM roles of nodes, by operating system.
#[derive(Default)]
struct Roles {
    windows: BTreeSet<String>,
    linux: BTreeSet<String>,
}

/// Returns the roles of existing nodes, and of those that Karpenter buys.
fn roles(snapshot: &Snapshot, found: &mut Findings) -> Roles {
    let mut roles = Roles::default();
    match (&snapshot.account.instances, &snapshot.account.roles) {
        (Ok(instances), Ok(of)) => {
            let windows = instances.windows.values().map(|own| &own.instance_profile);
            roles
                .windows
                .extend(windows.filter_map(|own| of.get(own).cloned()));
            let linux = instances.linux_profiles.iter();
            roles
                .linux
                .extend(linux.filter_map(|own| of.get(own).cloned()));
        }
        (Err(unknown), _) | (_, Err(unknown)) => found.missing.push(unknown.0.clone()),
    }
    match snapshot.all("EC2NodeClass") {
        Ok(classes) => {
            for class in classes {
                let spec = EC2NodeClassSpec::deserialize(&class["spec"]);
                let Some((family, role)) = spec
                    .ok()
                    .and_then(|spec| Some((family_of(&spec)?, spec.role?)))
                else {
                    continue;
                };
                match family.os() {
                    Os::Windows => roles.windows.insert(role),
                    Os::Linux => roles.linux.insert(role),
                };
            }
        }
        Err(unknown) => found.missing.push(unknown.0),
    }
    roles
}

/// Checks DOC10: Windows nodes are known to the cluster as such.
pub(in super::super) fn node_roles(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let mut found = Findings::default();
    let roles = roles(snapshot, &mut found);
    if roles.windows.is_empty() {
        return if found.missing.is_empty() {
            Ok(Findings::not_needed(
                "there is no Windows node, and no node class for one names a role",
            ))
        } else {
            Ok(found)
        };
    }
    let mut unmapped = Vec::new();
    for role in &roles.windows {
        let is_shared = roles.linux.contains(role);
        match &snapshot.account.cluster {
            Ok(cluster) if cluster.authentication_mode != "CONFIG_MAP" => {
                let entries = snapshot.account.entries.clone()?;
                let entry = entries.get(role).map(|own| own.kind.as_str());
                match (entry, cluster.authentication_mode.as_str()) {
                    (Some(EC2_WINDOWS), _) => {}
                    // In this mode, a role without an access entry may be in aws-auth.
                    (None, "API_AND_CONFIG_MAP") => unmapped.push(role.clone()),
                    (entry, _) => wrong_entry(cluster, role, entry, is_shared, &mut found),
                }
            }
            Ok(_) => unmapped.push(role.clone()),
            // A role that is missing in aws-auth may have an access entry instead.
            Err(unknown) => {
                if !missing_groups(snapshot, role)?.is_empty() {
                    found.missing.push(unknown.0.clone());
                }
            }
        }
    }
    aws_auth(snapshot, &unmapped, &mut found)?;
    // Every role lacks the same call, which is named once.
    found.missing.dedup();
    let count = roles.windows.len();
    found.state = match count {
        1 => "the role of the Windows nodes is known as one".to_owned(),
        count => format!("the {count} roles of Windows nodes are known as such"),
    };
    Ok(found)
}

/// Reports an access entry that is missing or has another type.
fn wrong_entry(
    cluster: &EksCluster,
    role: &str,
    entry: Option<&str>,
    is_shared: bool,
    found: &mut Findings,
) {
    let says = match entry {
        None => "has no access entry".to_owned(),
        Some(kind) => format!("has an access entry of type {kind}"),
    };
    if is_shared {
        found
            .fail(format!("the role {role} is that of Linux nodes too and {says}: an entry is for one system, so kube-proxy of its Windows nodes reads no Service"))
            .advise("give the Windows nodes a role of their own; for a managed node group EKS then creates the entry itself:")
            .command(format!("aws eks create-access-entry --cluster-name {} --principal-arn {} --type {EC2_WINDOWS}", cluster.name, role_arn("WINDOWS_ROLE")));
        return;
    }
    let problem = found.fail(format!(
        "the role {role} of Windows nodes {says}: it must be of type {EC2_WINDOWS}, else kube-proxy there reads no Service"
    ));
    // The type of an entry cannot be changed, so the entry is replaced.
    if entry.is_some() {
        problem.with_fix(Change::Account(AccountChange::DeleteAccessEntry {
            cluster: cluster.name.clone(),
            role: role.to_owned(),
        }));
    }
    problem.with_fix(Change::Account(AccountChange::CreateAccessEntry {
        cluster: cluster.name.clone(),
        role: role.to_owned(),
        kind: EC2_WINDOWS.to_owned(),
    }));
}

/// Returns the IDs of the failed checks that keep kube-proxy on Windows nodes from reading Services, in which case it crashes.
pub(super) fn proxy_faults(snapshot: &Snapshot) -> Vec<&'static str> {
    type Row = fn(&Snapshot) -> Result<Findings, Unknown>;
    let rows: [(&str, Row); 2] = [("DOC10", node_roles), ("DOC11", system::proxy_binding)];
    let failed = rows
        .into_iter()
        .filter(|(_, row)| row(snapshot).is_ok_and(|found| found.outcome() == Outcome::Failed));
    failed.map(|(id, _)| id).collect()
}

fn map_roles(snapshot: &Snapshot) -> Result<(Option<&Value>, &str), Unknown> {
    let map = snapshot.system("ConfigMap", "aws-auth")?;
    let text = map.and_then(|map| map["data"]["mapRoles"].as_str());
    Ok((map, text.unwrap_or_default()))
}

/// Returns the index of a role in the mapRoles list of aws-auth.
fn position(roles: &Value, role: &str) -> Option<usize> {
    let is_it = |own: &Value| {
        own["rolearn"]
            .as_str()
            .is_some_and(|arn| role_name(arn) == role)
    };
    list(roles).position(is_it)
}

/// Returns the required groups that aws-auth does not give to a role.
fn missing_groups(snapshot: &Snapshot, role: &str) -> Result<Vec<&'static str>, Unknown> {
    let (_, text) = map_roles(snapshot)?;
    let roles: Value = serde_saphyr::from_str(text).unwrap_or_default();
    let own = position(&roles, role).and_then(|index| roles.get(index));
    let has = |group: &&str| own.is_some_and(|own| list(&own["groups"]).any(|one| one == *group));
    Ok(GROUPS.into_iter().filter(|group| !has(group)).collect())
}

/// Reports the roles that lack groups in aws-auth, with one change for all of them.
fn aws_auth(snapshot: &Snapshot, roles: &[String], found: &mut Findings) -> Result<(), Unknown> {
    let (map, old) = map_roles(snapshot)?;
    let mut text = old.to_owned();
    let mut wrong = Vec::new();
    for role in roles {
        let missing = missing_groups(snapshot, role)?;
        if !missing.is_empty() {
            text = mapped(&text, role);
            wrong.push((role, missing));
        }
    }
    let change = match map {
        Some(map) => Change::merge(map, json!({"data": {"mapRoles": text}})),
        None => {
            let object = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "aws-auth", "namespace": "kube-system"},
                "data": {"mapRoles": text},
            });
            let quoted = super::super::change::quoted(&text);
            let command = format!(
                "kubectl -n kube-system create configmap aws-auth --from-literal=mapRoles={quoted}"
            );
            Change::create(object, &command)
        }
    };
    for (role, missing) in wrong {
        let groups = missing.join(", ");
        found
            .fail(format!(
                "the ConfigMap kube-system/aws-auth does not give the role {role} of Windows nodes the groups {groups}: without {PROXY_GROUP} a node is Ready and reaches no Service and no name"
            ))
            // The same change for every role: two patches of the one text would undo each other.
            .with_fix(change.clone());
    }
    Ok(())
}

/// Returns the mapRoles text of aws-auth with all required groups added to a role. Comments and order are kept as far as possible.
fn mapped(text: &str, role: &str) -> String {
    let mut roles: Value = serde_saphyr::from_str(text).unwrap_or_default();
    if !roles.is_array() {
        roles = json!([]);
    }
    let at = position(&roles, role);
    let mut edits = Vec::new();
    match at {
        Some(index) => {
            let groups = Path::default().index(index).key("groups");
            let own = &roles[index]["groups"];
            let missing = GROUPS
                .iter()
                .filter(|group| !list(own).any(|one| one == **group));
            edits.extend(missing.map(|group| Edit::Push(groups.clone(), json!(group))));
        }
        None => {
            let own = json!({
                "groups": GROUPS,
                "rolearn": role_arn_like(&roles, role),
                "username": "system:node:{{EC2PrivateDNSName}}",
            });
            edits.push(Edit::Push(Path::default(), own));
        }
    }
    // These edits keep comments and order. If the text has a form that they cannot change, it is written anew.
    let kept = edits
        .iter()
        .try_fold(text.to_owned(), |text, own| edit::apply(&text, 0, own));
    kept.unwrap_or_else(|| {
        for edit in &edits {
            edit.apply_to(&mut roles);
        }
        // The text is YAML, and JSON is valid YAML.
        format!("{roles:#}\n")
    })
}

/// Returns the ARN of a role, in the account of the roles that are already mapped.
fn role_arn_like(roles: &Value, role: &str) -> String {
    let other = list(roles).find_map(|own| own["rolearn"].as_str());
    match other.and_then(|arn| arn.split_once(":role/")) {
        Some((account, _)) => format!("{account}:role/{role}"),
        None => role_arn(role),
    }
}
