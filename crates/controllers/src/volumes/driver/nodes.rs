//! Publishes the driver on every EC2 node: a CSINode with the attach limit, and the driver's zone label.
//!
//! On a real node the kubelet does both when the driver's node plugin registers.

use std::sync::Arc;

use k8s_openapi::{
    api::{
        core::v1::Node,
        storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use mullion_api::labels;
use mullion_cloud::catalogue::{self, InstanceType};
use serde_json::json;

use super::{DRIVER, DRIVER_ZONE};
use crate::{Context, Key, Queue, api_error};

const WORKERS: usize = 2;
/// The in-tree plugins that CSI drivers replace since 1.31, as every kubelet lists them.
const MIGRATED_PLUGINS: &str = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder,\
                                kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume";

pub(super) fn start(context: &Context) {
    let queue: Queue<Key> = Queue::new("csi-node");
    context.informers.nodes.on_change({
        let queue = queue.clone();
        move |change| {
            if !change.is_deleted() && change.previous().is_none() {
                queue.add(Key::of(&**change.object()));
            }
        }
    });
    let context = context.clone();
    context.clone().tasks.spawn(async move {
        if context.informers.nodes.synced().await {
            let workers = context.clone();
            queue.run(&workers, WORKERS, move |key| {
                let context = context.clone();
                async move {
                    match context.informers.nodes.get_key(&key) {
                        Some(node) => register(&context, &node).await,
                        None => Ok(()),
                    }
                }
            });
        }
    });
}

async fn register(context: &Context, node: &Arc<Node>) -> kube::Result<()> {
    let Some(id) = instance_id(node) else {
        return Ok(());
    };
    let name = node.name_any();
    let own = node.labels();
    // The label precedes the CSINode, whose topology keys name it: the scheduler reads the values from the
    // node.
    if let Some(zone) = own.get(labels::ZONE)
        && own.get(DRIVER_ZONE) != Some(zone)
    {
        let patch = Patch::Merge(json!({ "metadata": { "labels": { DRIVER_ZONE: zone } } }));
        let api: Api<Node> = Api::all(context.client.clone());
        let patched = api.patch(&name, &PatchParams::default(), &patch).await;
        api_error::ignore_not_found(patched)?;
    }
    let api: Api<CSINode> = Api::all(context.client.clone());
    match api
        .create(&PostParams::default(), &csi_node(node, &id))
        .await
    {
        Err(error) if api_error::is_already_exists(&error) => {
            let existing = api.get_opt(&name).await?;
            // The CSINode of an earlier node of the same name is garbage collected with that node; the retry then
            // succeeds.
            match existing {
                Some(existing) if belongs_to(&existing, node) => Ok(()),
                _ => Err(error),
            }
        }
        outcome => outcome.map(drop),
    }
}

fn belongs_to(csi_node: &CSINode, node: &Node) -> bool {
    let owners = csi_node.metadata.owner_references.iter().flatten();
    let mut uids = owners.map(|owner| owner.uid.as_str());
    uids.any(|uid| node.metadata.uid.as_deref() == Some(uid))
}

fn csi_node(node: &Node, instance: &str) -> CSINode {
    let limit = node
        .labels()
        .get(labels::INSTANCE_TYPE)
        .and_then(|name| catalogue::get(name))
        .map_or(25, |kind| attach_limit(kind));
    let topology = [labels::OS, DRIVER_ZONE, labels::ZONE];
    CSINode {
        metadata: ObjectMeta {
            name: node.metadata.name.clone(),
            annotations: Some(
                [(
                    "storage.alpha.kubernetes.io/migrated-plugins".to_owned(),
                    MIGRATED_PLUGINS.to_owned(),
                )]
                .into(),
            ),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: node.name_any(),
                uid: node.uid().unwrap_or_default(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: CSINodeSpec {
            drivers: vec![CSINodeDriver {
                name: DRIVER.to_owned(),
                node_id: instance.to_owned(),
                topology_keys: Some(topology.map(str::to_owned).to_vec()),
                allocatable: Some(VolumeNodeResources { count: Some(limit) }),
            }],
        },
    }
}

/// Returns how many volumes the driver attaches to an instance: on Nitro 28 slots less one network interface, the
/// root volume and the local disks (counted as one); on Xen 39 less the root volume.
fn attach_limit(kind: &InstanceType) -> i32 {
    if kind.hypervisor == "xen" {
        return 39 - 1;
    }
    28 - 1 - 1 - i32::from(kind.local_nvme_gb > 0)
}

/// Returns the instance ID `i-...` of the provider ID `aws:///zone/i-...`.
fn instance_id(node: &Node) -> Option<String> {
    let id = node.spec.as_ref()?.provider_id.as_deref()?;
    let id = id.strip_prefix("aws://")?.rsplit('/').next()?;
    Some(id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_follows_the_hypervisor_and_what_else_takes_slots() {
        let limit = |name: &str| attach_limit(catalogue::get(name).expect("a known type"));
        assert_eq!(limit("m5.large"), 26);
        assert_eq!(limit("m5d.large"), 25);
        assert_eq!(limit("m4.large"), 38);
    }

    #[test]
    fn only_nodes_of_ec2_have_the_driver() {
        let node = |id: &str| -> Node {
            serde_json::from_value(
                json!({ "metadata": { "name": "n" }, "spec": { "providerID": id } }),
            )
            .expect("a node")
        };
        assert_eq!(
            instance_id(&node("aws:///us-west-2a/i-1")).as_deref(),
            Some("i-1")
        );
        assert_eq!(instance_id(&node("kind://docker/n")), None);
    }
}
