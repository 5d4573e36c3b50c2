//! Renders reasons as text; no other module does.
//!
//! Invariant: messages equal kube-scheduler's exactly; Mullion's own `detail` is only appended after them.

mod change;
mod pool;
mod values;

use std::collections::BTreeMap;

use crate::amounts::{at_least, at_most};
use crate::cluster::Cluster;
use crate::devices::ClaimConflict;
use crate::intern::Symbol;
use crate::model::Quantity;
use crate::preempt::Preemption;
use crate::provision::PoolReason;
use crate::reason::{Conflict, LabelMismatch, Reason, Tally, Veto};
use crate::schedule::{Claims, Unschedulable};

/// Returns the text for a limit of a pool that is reached, or exceeded if less than nothing is left.
fn limit_text(resource: &str, left: Quantity) -> String {
    if left.is_negative() {
        let over = Quantity::default().saturating_sub(left);
        let over = change::format_quantity(resource, over);
        return format!("limit exceeded by {over} {resource}");
    }
    let left = change::format_quantity(resource, left);
    format!("limit reached: {left} {resource} left")
}

/// Returns the text for a pod that accepts more combinations of labels than the `tried` ones, with none of which it has a place.
pub fn more_combinations(tried: usize) -> String {
    format!(
        "no node with one of the first {tried} combinations of labels that the pod accepts has a place for it, and no more are tried"
    )
}

impl Cluster {
    /// Returns kube-scheduler's text for a reason, as it reports it per node.
    pub fn reason_text(&self, reason: Reason) -> String {
        let fixed = match reason {
            Reason::NotNamed => "node(s) didn't satisfy plugin(s) [NodeAffinity]",
            Reason::Unschedulable => "node(s) were unschedulable",
            Reason::NodeName => "node(s) didn't match the requested node name",
            Reason::UntoleratedTaint { .. } => "node(s) had untolerated taint(s)",
            Reason::NodeAffinity { .. } => "node(s) didn't match Pod's node affinity/selector",
            Reason::EnforcedAffinity => "node(s) didn't match scheduler-enforced node affinity",
            Reason::OperatingSystem { .. } => "node(s) didn't match Pod's operating system",
            Reason::PortTaken { .. } => {
                "node(s) didn't have free ports for the requested pod ports"
            }
            Reason::TooManyPods { .. } => "Too many pods",
            Reason::Insufficient { resource, .. } => {
                return format!("Insufficient {}", self.text(resource));
            }
            Reason::DiskTaken => "node(s) had no available disk",
            Reason::ClaimTaken { .. } => {
                "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by \
                 another pod"
            }
            Reason::VolumeLimit { .. } => "node(s) exceed max volume count",
            Reason::ClaimNotCounted { namespace, claim } => {
                let (namespace, claim) = (self.text(namespace), self.text(claim));
                return format!(
                    "looking up PVC {namespace}/{claim}: persistentvolumeclaim \"{claim}\" not found"
                );
            }
            Reason::VolumeAffinity => "node(s) didn't match PersistentVolume's node affinity",
            Reason::NoVolumeToBind => "node(s) didn't find available persistent volumes to bind",
            Reason::NoStorageLeft => "node(s) did not have enough free storage",
            Reason::VolumeMissing => {
                "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
            }
            Reason::VolumeZone { .. } => "node(s) had no available volume zone",
            Reason::Conflict(conflict) => return self.conflict_text(conflict),
            Reason::Spread { .. } => "node(s) didn't match pod topology spread constraints",
            Reason::SpreadKeyMissing { .. } => {
                "node(s) didn't match pod topology spread constraints (missing required label)"
            }
            Reason::Affinity => "node(s) didn't match pod affinity rules",
            Reason::AntiAffinity => "node(s) didn't match pod anti-affinity rules",
            Reason::ExistingAntiAffinity => {
                "node(s) didn't satisfy existing pods anti-affinity rules"
            }
            Reason::DevicesTaken => "cannot allocate all claims",
            Reason::DevicePoolsInvalid => "invalid resource pools were encountered",
            Reason::DevicesUndecided => "timed out trying to allocate devices",
            Reason::DevicesFailed => "devices could not be looked for",
            Reason::DevicesElsewhere => "resourceclaim not available on the node",
            Reason::ExtendedClaimLeft => "cannot schedule extended resource claim",
            Reason::ResourceMissing { .. } => "cannot fit resource",
            Reason::FeatureMissing { .. } => "node(s) didn't match Pod's required features",
            Reason::PreemptionNotHelpful => "Preemption is not helpful for scheduling",
            Reason::NoVictims => "No preemption victims found for incoming pod",
        };
        fixed.to_owned()
    }

    /// Returns kube-scheduler's text for why a pod is refused before any node is examined.
    pub fn conflict_text(&self, conflict: Conflict) -> String {
        let fixed = match conflict {
            Conflict::Affinity => "pod affinity terms conflict",
            Conflict::ClaimNotFound { claim } => {
                return format!("persistentvolumeclaim \"{}\" not found", self.text(claim));
            }
            Conflict::EphemeralClaimMissing { claim } => {
                return format!(
                    "waiting for ephemeral volume controller to create the persistentvolumeclaim \"{}\"",
                    self.text(claim)
                );
            }
            Conflict::EphemeralClaimNotOwned {
                namespace,
                claim,
                pod,
            } => {
                let (namespace, claim, pod) =
                    (self.text(namespace), self.text(claim), self.text(pod));
                return format!(
                    "PVC {namespace}/{claim} was not created for pod {namespace}/{pod} (pod is not owner)"
                );
            }
            Conflict::ClaimLost { claim, volume } => {
                let (claim, volume) = (self.text(claim), self.text(volume));
                return format!(
                    "persistentvolumeclaim \"{claim}\" bound to non-existent persistentvolume \"{volume}\""
                );
            }
            Conflict::ClaimDeleting { claim } => {
                return format!(
                    "persistentvolumeclaim \"{}\" is being deleted",
                    self.text(claim)
                );
            }
            Conflict::UnboundImmediate => "pod has unbound immediate PersistentVolumeClaims",
            Conflict::VolumeNotFound { volume } => {
                return format!("persistentvolume \"{}\" not found", self.text(volume));
            }
            Conflict::ClassNotFound { class } => {
                return format!(
                    "storageclass.storage.k8s.io \"{}\" not found",
                    self.text(class)
                );
            }
            Conflict::NoVolumeNorClass => {
                "PersistentVolumeClaim had no pv name and storageClass name"
            }
            Conflict::NoVolumeName => "PersistentVolume had no name",
            Conflict::Claims(conflict) => return self.claim_conflict_text(conflict),
            Conflict::Preference { why } => {
                return format!(
                    "running PreScore plugin \"NodeAffinity\": {}",
                    self.text(why)
                );
            }
        };
        fixed.to_owned()
    }

    /// Returns Mullion's text for what must be created, changed or deleted before the pod can be placed; `None` if that is
    /// the pod itself.
    pub fn prerequisite(&self, conflict: Conflict) -> Option<String> {
        let text = |symbol| self.text(symbol);
        Some(match conflict {
            Conflict::Affinity => return None,
            Conflict::Preference { .. } => {
                "a preferred term of its node affinity cannot be read and has to be put right".to_owned()
            }
            Conflict::ClaimNotFound { claim } => {
                format!("PersistentVolumeClaim {} has to be created", text(claim))
            }
            Conflict::EphemeralClaimMissing { claim } => format!(
                "PersistentVolumeClaim {} is made for it by the cluster, and is not there yet",
                text(claim)
            ),
            Conflict::EphemeralClaimNotOwned { claim, .. } => format!(
                "PersistentVolumeClaim {} has the name of its ephemeral volume's and has to go",
                text(claim)
            ),
            Conflict::ClaimLost { claim, volume } => format!(
                "PersistentVolumeClaim {} has to be made anew, its PersistentVolume {} is gone",
                text(claim),
                text(volume)
            ),
            Conflict::ClaimDeleting { claim } => format!(
                "PersistentVolumeClaim {} is being deleted and has to be created again",
                text(claim)
            ),
            Conflict::UnboundImmediate => {
                "its PersistentVolumeClaims have to be bound first: a PersistentVolume that matches, or a StorageClass that makes one"
                    .to_owned()
            }
            Conflict::VolumeNotFound { volume } => {
                format!("PersistentVolume {} has to be created", text(volume))
            }
            Conflict::ClassNotFound { class } => {
                format!("StorageClass {} has to be created", text(class))
            }
            Conflict::NoVolumeNorClass => {
                "its PersistentVolumeClaim needs a volumeName or a storageClassName".to_owned()
            }
            Conflict::NoVolumeName => "its PersistentVolume needs a name".to_owned(),
            Conflict::Claims(conflict) => match conflict {
                ClaimConflict::NotCreated { .. } => {
                    "its ResourceClaim is made for it by the cluster, and is not there yet".to_owned()
                }
                ClaimConflict::NotFound { claim, .. } => {
                    format!("ResourceClaim {} has to be created", text(claim))
                }
                ClaimConflict::Deleting { claim } => format!(
                    "ResourceClaim {} is being deleted and has to be created again",
                    text(claim)
                ),
                ClaimConflict::NotOwned { claim, .. } => format!(
                    "ResourceClaim {} has the name of the one made for it and has to go",
                    text(claim)
                ),
                ClaimConflict::Pending { claim, .. } => {
                    format!("ResourceClaim {} is being allocated, which ends by itself", text(claim))
                }
                ClaimConflict::NoClass { class, .. } => {
                    format!("DeviceClass {} has to be created", text(class))
                }
                ClaimConflict::Failed { .. } => {
                    "what its ResourceClaims or their DeviceClasses ask for has to be put right".to_owned()
                }
            },
        })
    }

    fn claim_conflict_text(&self, conflict: ClaimConflict) -> String {
        let text = |symbol| self.text(symbol);
        match conflict {
            ClaimConflict::NotCreated { namespace, pod } => format!(
                "pod \"{}/{}\": ResourceClaim not created yet",
                text(namespace),
                text(pod)
            ),
            ClaimConflict::NotFound { namespace, claim } => format!(
                "could not find ResourceClaim \"{}/{}\"",
                text(namespace),
                text(claim)
            ),
            ClaimConflict::Deleting { claim } => {
                format!("resourceclaim \"{}\" is being deleted", text(claim))
            }
            ClaimConflict::NotOwned {
                namespace,
                claim,
                pod,
            } => {
                let (namespace, claim, pod) = (text(namespace), text(claim), text(pod));
                format!(
                    "ResourceClaim {namespace}/{claim} was not created for Pod {namespace}/{pod} (Pod is not owner)"
                )
            }
            ClaimConflict::Pending { namespace, claim } => format!(
                "resource claim {}/{} is in the process of being allocated",
                text(namespace),
                text(claim)
            ),
            ClaimConflict::NoClass { request, class } => format!(
                "request {}: device class {} does not exist",
                text(request),
                text(class)
            ),
            ClaimConflict::Failed { why } => {
                format!("running \"DynamicResources\" filter plugin: {}", text(why))
            }
        }
    }

    /// Returns Mullion's text for a reason, with the data that kube-scheduler's text lacks.
    pub fn reason_detail(&self, reason: Reason) -> String {
        match reason {
            Reason::UntoleratedTaint { key, value, effect } => {
                let effect = effect.as_str();
                match self.text(value) {
                    "" => format!("taint {}:{effect} is not tolerated", self.text(key)),
                    value => format!("taint {}={value}:{effect} is not tolerated", self.text(key)),
                }
            }
            Reason::OperatingSystem { wanted, found } => self.mismatch(LabelMismatch {
                key: Symbol::OS,
                wanted,
                found,
            }),
            Reason::NodeAffinity {
                mismatch: Some(mismatch),
            } => self.mismatch(mismatch),
            Reason::PortTaken { port } => format!("host port {port} is taken"),
            Reason::TooManyPods { allowed } => format!("all {allowed} pod slots are taken"),
            Reason::Insufficient {
                resource,
                requested,
                free,
                allocatable,
            } => {
                let name = self.text(resource);
                let free = free.max(0);
                format!(
                    "{name}: needs {}, {} of {} are free",
                    at_least(name, requested),
                    at_most(name, free),
                    at_most(name, allocatable)
                )
            }
            Reason::Spread {
                key,
                skew,
                max_skew,
                fewest,
            } => {
                let fewest = fewest.map_or(String::new(), |domain| {
                    format!(", and {} has the fewest pods", self.text(domain))
                });
                format!(
                    "{}: the skew would be {skew}, at most {max_skew} is allowed{fewest}",
                    self.text(key)
                )
            }
            Reason::ClaimTaken { claim } => {
                format!("claim {} is for one pod, and one has it", self.text(claim))
            }
            Reason::VolumeLimit {
                driver,
                held,
                wanted,
                limit,
            } => format!(
                "{}: {held} volumes are attached and {wanted} would be added, at most {limit} are allowed",
                self.text(driver)
            ),
            Reason::VolumeZone { key } => {
                format!("a volume of the pod has another {}", self.text(key))
            }
            Reason::FeatureMissing { feature } => format!("its kubelet does not declare {feature}"),
            Reason::SpreadKeyMissing { key } => format!("no label {}", self.text(key)),
            Reason::NotNamed => "the pod is for another node, which it names".to_owned(),
            other => self.reason_text(other),
        }
    }

    fn mismatch(&self, mismatch: LabelMismatch) -> String {
        let (key, wanted) = (self.text(mismatch.key), self.text(mismatch.wanted));
        match mismatch.found {
            Some(found) => format!("{key} is {}, the pod needs {wanted}", self.text(found)),
            None => format!("no label {key}, the pod needs {wanted}"),
        }
    }

    /// Returns Mullion's text for why a pool cannot buy a node for a pod.
    pub fn pool_reason_text(&self, reason: &PoolReason) -> String {
        match reason {
            PoolReason::NoInstanceTypes => {
                "no instance type meets the pool's requirements".to_owned()
            }
            PoolReason::Incompatible { reason, .. } => self.reason_detail(*reason),
            PoolReason::LimitReached {
                resource,
                remaining,
                others,
            } => {
                let first = std::iter::once((resource, remaining));
                let others = others.iter().map(|(name, left)| (name, left));
                let mut all: Vec<_> = first.chain(others).collect();
                all.sort_unstable();
                let texts = all.into_iter();
                let texts = texts.map(|(name, left)| limit_text(name, *left));
                texts.collect::<Vec<_>>().join("; ")
            }
            PoolReason::TooLarge { resource } => {
                format!("{resource}: more than any type offers beside its DaemonSets")
            }
            PoolReason::NoOffering => "every type that would hold the pod is sold out".to_owned(),
            PoolReason::ReservationHeld => {
                "other nodes hold all reserved capacity that would do until it is known what they run in"
                    .to_owned()
            }
            PoolReason::Topology { reason, .. } => self.reason_detail(*reason),
            PoolReason::MoreCombinations { tried } => more_combinations(*tried),
            PoolReason::MinValues { key, wanted, found } => {
                format!("{key}: {found} values would stay possible, the pool demands {wanted}")
            }
        }
    }

    /// Returns the FailedScheduling message without the part about preemption.
    pub fn message(&self, refused: &Unschedulable) -> String {
        // kube-scheduler's `ErrNoNodesAvailable`, which comes before any plugin is asked.
        if self.node_count() == 0 {
            return "no nodes available to schedule pods".to_owned();
        }
        if let Some(veto) = refused.conflict {
            let conflict = veto.conflict;
            // An error of a plugin ends the attempt and is reported alone, without the count of nodes.
            if conflict.is_error() {
                return self.conflict_text(conflict);
            }
            return format!(
                "0/{} nodes are available: {}.",
                self.node_count(),
                self.conflict_text(conflict)
            );
        }
        self.counts(&refused.tallies)
    }

    /// Returns the complete FailedScheduling message.
    pub fn message_with_preemption(
        &self,
        refused: &Unschedulable,
        preemption: &Preemption,
    ) -> String {
        let message = self.message(refused);
        let is_error = refused.conflict.is_some_and(Veto::is_error);
        match self.preemption_message(refused.claims, preemption) {
            // Preemption is not tried after an error, so nothing is said about it.
            Some(_) if self.node_count() == 0 || is_error => message,
            Some(more) => format!("{message} {more}"),
            None => message,
        }
    }

    /// Returns the part of the message about preemption; `None` if pods are evicted.
    pub fn preemption_message(&self, claims: Claims, preemption: &Preemption) -> Option<String> {
        let claims = match claims {
            Claims::None => "no new claims to deallocate",
            Claims::Kept => "still not schedulable",
            Claims::GivenBack { .. } => "deallocation of ResourceClaim completed",
            Claims::Deleted { .. } => "deletion of ResourceClaim completed",
        };
        match preemption {
            Preemption::Evict { .. } => None,
            Preemption::NotTried => Some("not found".to_owned()),
            Preemption::Off => Some(claims.to_owned()),
            Preemption::Alone(preemption) => self.preemption_words(preemption),
            // Messages of the PostFilter plugins follow each other in the order of the profile, joined by a comma.
            Preemption::First(preemption) => {
                let words = self.preemption_words(preemption);
                Some(words.map_or(claims.to_owned(), |words| format!("{words}, {claims}")))
            }
            other => {
                let words = self.preemption_words(other)?;
                Some(format!("{claims}, {words}"))
            }
        }
    }

    /// Returns DefaultPreemption's own part of the message; `None` if the plugin reports nothing.
    fn preemption_words(&self, preemption: &Preemption) -> Option<String> {
        let why = match preemption.inner() {
            Preemption::PolicyNever => "not eligible due to preemptionPolicy=Never.".to_owned(),
            Preemption::VictimsTerminating => {
                "not eligible due to a terminating pod on the nominated node.".to_owned()
            }
            Preemption::NotHelpful(tallies) => self.counts(tallies),
            _ => return None,
        };
        Some(format!("preemption: {why}"))
    }

    /// Returns the counts of reasons: `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.`
    fn counts(&self, tallies: &[Tally]) -> String {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for tally in tallies {
            for reason in tally.refusal.reasons() {
                // Counted by text and not by reason, as kube-scheduler does: reasons that differ only in data are one
                // phrase.
                *counts.entry(self.reason_text(reason)).or_default() += tally.nodes;
            }
        }
        // kube-scheduler sorts the phrases as text, including their numbers.
        let mut phrases: Vec<_> = counts
            .into_iter()
            .map(|(reason, count)| format!("{count} {reason}"))
            .collect();
        phrases.sort_unstable();
        format!(
            "0/{} nodes are available: {}.",
            self.node_count(),
            phrases.join(", ")
        )
    }
}
