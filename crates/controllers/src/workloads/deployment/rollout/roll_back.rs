//! Rollback by annotation: what `kubectl rollout undo` asked of servers before it could patch templates itself.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::{ResourceExt, api::PostParams};

use super::{
    super::{
        Error,
        revision::{self, ROLLBACK_TO},
    },
    Rollout,
    revise::equal_but_for_hash,
};
use crate::workloads::POD_TEMPLATE_HASH;

impl Rollout<'_> {
    /// Follows the rollback annotation: takes the template of the revision asked for.
    pub(in super::super) async fn roll_back(mut self) -> Result<(), Error> {
        self.sync_revision(true).await?;
        let asked = self
            .deployment
            .annotations()
            .get(ROLLBACK_TO)
            .and_then(|text| text.parse::<i64>().ok());
        let target = match asked.unwrap_or_default() {
            0 => revision::last_revision(self.sets().map(|set| &**set)),
            revision => revision,
        };
        let found = self
            .sets()
            .find(|set| target != 0 && revision::revision(set) == target)
            .cloned();
        let mut rolled_back = self.deployment.clone();
        match found {
            None if asked.unwrap_or_default() == 0 => {
                let message = "Unable to find last revision.";
                self.recorder
                    .warning(&self.deployment, "RollbackRevisionNotFound", message);
            }
            None => {
                let message = "Unable to find the revision to rollback to.";
                self.recorder
                    .warning(&self.deployment, "RollbackRevisionNotFound", message);
            }
            Some(set) => {
                let own = set
                    .spec
                    .as_ref()
                    .and_then(|spec| spec.template.clone())
                    .unwrap_or_default();
                let spec = rolled_back.spec.get_or_insert_default();
                if equal_but_for_hash(&own, &spec.template) {
                    let message = format!(
                        "The rollback revision contains the same template as current deployment \"{}\"",
                        self.deployment.name_any()
                    );
                    self.recorder
                        .warning(&self.deployment, "RollbackTemplateUnchanged", message);
                } else {
                    spec.template = without_hash(own);
                    *rolled_back.annotations_mut() =
                        revision::annotations_after_rollback(&self.deployment, &set);
                    let message = format!(
                        "Rolled back deployment \"{}\" to revision {target}",
                        self.deployment.name_any()
                    );
                    self.recorder
                        .normal(&self.deployment, "RollbackDone", message);
                }
            }
        }
        rolled_back.annotations_mut().remove(ROLLBACK_TO);
        self.deployments()
            .replace(
                &self.deployment.name_any(),
                &PostParams::default(),
                &rolled_back,
            )
            .await?;
        Ok(())
    }
}

fn without_hash(mut template: PodTemplateSpec) -> PodTemplateSpec {
    if let Some(labels) = template
        .metadata
        .as_mut()
        .and_then(|metadata| metadata.labels.as_mut())
    {
        labels.remove(POD_TEMPLATE_HASH);
    }
    template
}
