//! The AWS account of an embedded cluster: the custom resource that `mullion doctor` reads and users change, and the objects that EKS and
//! eksctl create in a new cluster for the roles of its nodes.
//!
//! The spec is created once, as eksctl would set up an account. Afterwards it is the user's; only instance profiles of new node classes are
//! added. The status has the state of the simulated EC2, and is written when that changes.

use std::{collections::BTreeMap, time::Duration};

use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use mullion_api::{
    account::{
        AccessEntry, CONTROLLER_POLICY, EC2_LINUX, EC2_WINDOWS, EksCluster, Image, InstanceProfile,
        NAME, Role, SimulatedAccount, SimulatedAccountSpec, role_arn,
    },
    ami::{AmiFamily, Os, WindowsEdition, WindowsRelease},
    karpenter::EC2NodeClass,
    labels,
};
use mullion_cloud::{Instance, catalogue::Arch, image::NodeImage, sim::SimulatedEc2};
use mullion_controllers::{Context, Informer, api_error};
use serde_json::{Value, json};

use super::plan::Plan;

/// The groups of a Windows node's role in the ConfigMap aws-auth.
const WINDOWS_GROUPS: [&str; 3] = [
    "system:bootstrappers",
    "system:nodes",
    "eks:kube-proxy-windows",
];
/// The user name of a node.
const NODE_USER: &str = "system:node:{{EC2PrivateDNSName}}";
/// The role of the nodes of the default NodePools (`default-pools.yaml`).
const DEFAULT_ROLE: &str = "KarpenterNodeRole-mullion";
const DEFAULT_CLASSES: [&str; 4] = ["linux", "windows-2019", "windows-2022", "windows-2025"];
/// The time for which changes are collected before the status is written, to which a part for each instance is added.
const REST: Duration = Duration::from_millis(500);
const REST_FOR_EACH: Duration = Duration::from_millis(5);

/// Returns the account and the objects for the roles of nodes in a new cluster.
pub(super) fn manifests(plan: &Plan) -> Vec<Value> {
    let mut manifests = vec![
        json!({
            "apiVersion": "cloud.mullion.dev/v1alpha1", "kind": "SimulatedAccount",
            "metadata": {"name": NAME},
            "spec": spec(plan),
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {
                "name": "eks:kube-proxy-windows",
                "labels": {"k8s-app": "kube-proxy", "eks.amazonaws.com/component": "kube-proxy"},
            },
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-proxier"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "eks:kube-proxy-windows"}],
        }),
    ];
    let roles = map_roles(plan);
    if !roles.is_empty() {
        manifests.push(json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "aws-auth", "namespace": "kube-system"},
            "data": {"mapRoles": roles},
        }));
    }
    manifests
}

/// Returns the roles in aws-auth as YAML: those of the config, and that of the default NodePools.
fn map_roles(plan: &Plan) -> String {
    let mut text = String::new();
    let mut add = |arn: &str, username: &str, groups: &[String]| {
        text += "- groups:\n";
        for group in groups {
            text += &format!("  - {group}\n");
        }
        text += &format!("  rolearn: {arn}\n  username: {username}\n");
    };
    for mapping in &plan.spec.identity_mappings {
        add(&mapping.arn, &mapping.username, &mapping.groups);
    }
    if plan.default_pools {
        let groups = WINDOWS_GROUPS.map(str::to_owned);
        add(&role_arn(DEFAULT_ROLE), NODE_USER, &groups);
    }
    text
}

fn spec(plan: &Plan) -> SimulatedAccountSpec {
    let (name, version) = (&plan.spec.name, plan.spec.version);
    let cluster_role = format!("eksctl-{name}-cluster-ServiceRole");
    let mut spec = SimulatedAccountSpec {
        cluster: EksCluster {
            name: name.clone(),
            version: version.to_string(),
            platform_version: "eks.4".to_owned(),
            role: cluster_role.clone(),
            ip_family: "ipv4".to_owned(),
            authentication_mode: "API_AND_CONFIG_MAP".to_owned(),
            auto_mode: false,
        },
        ..SimulatedAccountSpec::default()
    };
    let policies = ["AmazonEKSClusterPolicy", CONTROLLER_POLICY].map(str::to_owned);
    spec.roles.insert(
        cluster_role,
        Role {
            policies: policies.into(),
        },
    );
    for group in &plan.spec.node_groups {
        let role = format!("eksctl-{name}-nodegroup-{}-NodeInstanceRole", group.name);
        let kind = match group.ami_family.os() {
            Os::Windows => EC2_WINDOWS,
            Os::Linux => EC2_LINUX,
        };
        let entry = AccessEntry {
            kind: kind.to_owned(),
        };
        spec.access_entries.insert(role.clone(), entry);
        spec.instance_profiles
            .insert(group_profile(name, &group.name), InstanceProfile { role });
    }
    let classes = DEFAULT_CLASSES.iter().filter(|_| plan.default_pools);
    for class in classes {
        let role = DEFAULT_ROLE.to_owned();
        spec.instance_profiles
            .insert(class_profile(name, class), InstanceProfile { role });
    }
    spec.images = images(plan);
    spec
}

/// Returns the Windows AMIs of the cluster's version.
fn images(plan: &Plan) -> BTreeMap<String, Image> {
    let releases = [
        WindowsRelease::V2019,
        WindowsRelease::V2022,
        WindowsRelease::V2025,
    ];
    let families = releases.into_iter().flat_map(|release| {
        [WindowsEdition::Core, WindowsEdition::Full]
            .map(|edition| AmiFamily::Windows(release, edition))
    });
    families
        .map(|family| {
            let image = NodeImage::new(family, plan.spec.version, Arch::Amd64);
            let facts = image_facts(&image, false);
            (image.id, facts)
        })
        .collect()
}

fn image_facts(image: &NodeImage, withdrawn: bool) -> Image {
    // Names end in the day of their release: 2025.03.14.
    let (line, released) = image.name.rsplit_once('-').unwrap_or((&image.name, ""));
    Image {
        line: line.to_owned(),
        released: released.replace('.', "-"),
        withdrawn,
    }
}

/// Adds a Windows image to the account, or marks it as withdrawn.
pub(super) async fn publish(
    client: &Client,
    image: &NodeImage,
    withdrawn: bool,
) -> kube::Result<()> {
    let api: Api<SimulatedAccount> = Api::all(client.clone());
    let facts = image_facts(image, withdrawn);
    let patch = Patch::Merge(json!({"spec": {"images": {&image.id: facts}}}));
    let patched = api.patch(NAME, &PatchParams::default(), &patch).await;
    // A user may have deleted the account.
    api_error::ignore_not_found(patched).map(drop)
}

fn group_profile(cluster: &str, group: &str) -> String {
    format!("eksctl-{cluster}-nodegroup-{group}")
}

fn class_profile(cluster: &str, class: &str) -> String {
    format!("{cluster}_{class}")
}

/// Returns the instance profile of an instance, from the tags that eksctl and Karpenter set.
fn profile(cluster: &str, instance: &Instance) -> String {
    let tag = |key: &str| instance.tags.get(key);
    match (tag(labels::EKSCTL_NODEGROUP), tag(labels::EC2NODECLASS)) {
        (Some(group), _) => group_profile(cluster, group),
        (_, Some(class)) => class_profile(cluster, class),
        _ => String::new(),
    }
}

/// Gives the simulated EC2 what the account of an earlier start has for it, before anything is bought.
pub(super) async fn resume(context: &Context, ec2: &SimulatedEc2) {
    let api: Api<SimulatedAccount> = Api::all(context.client.clone());
    // A new cluster has no account yet, and a user may have deleted it.
    if let Ok(account) = api.get(NAME).await {
        apply(&account.spec, &SimulatedAccountSpec::default(), ec2);
    }
}

/// Has the simulated EC2 follow the account's capacity reservations, placement groups, names of images and denied actions.
pub(super) fn follow_spec(context: &Context, ec2: &SimulatedEc2) {
    let api: Api<SimulatedAccount> = Api::all(context.client.clone());
    let (tasks, shutdown) = (context.tasks.clone(), context.shutdown.clone());
    let accounts: Informer<SimulatedAccount> = Informer::new(api, &[], tasks, shutdown);
    let ec2 = ec2.clone();
    accounts.on_change(move |change| {
        let account = change.object();
        if account.metadata.name.as_deref() != Some(NAME) {
            return;
        }
        let none = SimulatedAccountSpec::default();
        let before = change.previous().map_or(&none, |old| &old.spec);
        if change.is_deleted() {
            apply(&none, &account.spec, &ec2)
        } else {
            apply(&account.spec, before, &ec2)
        }
    });
    accounts.start();
}

/// Applies the differences between two specs to the simulated EC2.
fn apply(now: &SimulatedAccountSpec, before: &SimulatedAccountSpec, ec2: &SimulatedEc2) {
    if now.capacity_reservations != before.capacity_reservations {
        ec2.reserve(&now.capacity_reservations);
    }
    if now.placement_groups != before.placement_groups {
        ec2.group(&now.placement_groups);
    }
    if now.image_tags != before.image_tags || now.parameters != before.parameters {
        ec2.name_images(&now.image_tags, &now.parameters);
    }
    if now.denied != before.denied {
        ec2.deny(&now.denied);
    }
}

/// Writes what the simulated EC2 has into the account, now and after every change.
pub(super) fn follow(context: &Context, ec2: &SimulatedEc2, cluster: &str) {
    let follower = Follower {
        client: context.client.clone(),
        ec2: ec2.clone(),
        cluster: cluster.to_owned(),
    };
    let shutdown = context.shutdown.clone();
    context.tasks.spawn(async move {
        shutdown.run_until_cancelled(follower.run()).await;
    });
}

struct Follower {
    client: Client,
    ec2: SimulatedEc2,
    cluster: String,
}

impl Follower {
    async fn run(self) {
        let mut instances = self.ec2.changed();
        let mut addresses = self.ec2.addresses_changed();
        loop {
            // These marks come before the write, so that a change during the write causes another one.
            instances.mark_unchanged();
            addresses.mark_unchanged();
            let count = self.write().await.unwrap_or_else(|error| {
                // A cluster made by an earlier version has no such object, and a user may have deleted it.
                tracing::debug!("the simulated account is not written: {error}");
                0
            });
            tokio::time::sleep(REST + REST_FOR_EACH * count).await;
            let changed = tokio::select! {
                changed = instances.changed() => changed,
                changed = addresses.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
        }
    }

    /// Writes the status if it has changed; returns how many instances the status has.
    async fn write(&self) -> Result<u32, kube::Error> {
        let api: Api<SimulatedAccount> = Api::all(self.client.clone());
        let status = self.ec2.facts(|instance| profile(&self.cluster, instance));
        let count = u32::try_from(status.instances.len()).unwrap_or(u32::MAX);
        let mut account = api.get(NAME).await?;
        if account.status.as_ref() != Some(&status) {
            account.status = Some(status.clone());
            // They may be large, and the API server keeps the stored ones.
            account.metadata.managed_fields = None;
            account = api
                .replace_status(NAME, &PostParams::default(), &account)
                .await?;
        }
        let windows = status.instances.values();
        let windows = windows.map(|own| own.instance_profile.as_str());
        let used = windows.chain(status.linux_profiles.iter().map(String::as_str));
        for profile in used {
            if !account.spec.instance_profiles.contains_key(profile) && !profile.is_empty() {
                let role = self.role(profile).await?;
                // A merge patch of this one key, so that changes of the user's are not overwritten.
                let patch = json!({"spec": {"instanceProfiles": {profile: {"role": role}}}});
                account = api
                    .patch(NAME, &PatchParams::default(), &Patch::Merge(patch))
                    .await?;
            }
        }
        Ok(count)
    }

    /// Returns the role that Karpenter gives the instance profile of a node class.
    async fn role(&self, profile: &str) -> Result<String, kube::Error> {
        let prefix = class_profile(&self.cluster, "");
        let class = profile.strip_prefix(&prefix).unwrap_or_default();
        let api: Api<EC2NodeClass> = Api::all(self.client.clone());
        let class = api.get_opt(class).await?;
        let spec = class.map(|class| class.spec);
        let role = spec.and_then(|spec| spec.role.or(spec.instance_profile));
        Ok(role_of(&role.unwrap_or_else(|| profile.to_owned())))
    }
}

/// Returns the role of a user's profile, by the names in Karpenter's guides; for any other name, the name itself.
fn role_of(profile: &str) -> String {
    match profile.strip_prefix("KarpenterNodeInstanceProfile-") {
        Some(cluster) => format!("KarpenterNodeRole-{cluster}"),
        None => profile.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_of_the_guides_has_the_role_of_the_guides() {
        assert_eq!(
            role_of("KarpenterNodeInstanceProfile-demo"),
            "KarpenterNodeRole-demo"
        );
        assert_eq!(role_of("mine"), "mine");
    }
}
