//! Rolls a Deployment back on request of an annotation, which `kubectl rollout undo` set before it patched
//! templates itself.

use k8s_openapi::api::{apps::v1::Deployment, core::v1::PodTemplateSpec};
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

const NOT_FOUND: &str = "DeploymentRollbackRevisionNotFound";
const UNCHANGED: &str = "DeploymentRollbackTemplateUnchanged";
const DONE: &str = "DeploymentRollback";

impl Rollout<'_> {
    /// Restores the template of revision `asked`, where 0 means the one before the current. The request is removed
    /// in any case.
    pub(in super::super) async fn roll_back(mut self, asked: i64) -> Result<(), Error> {
        // The current template must have its revision first, or undo could not come back to it.
        self.sync_revision(true).await?;
        let target = match asked {
            0 => revision::last_revision(self.sets().map(|set| &**set)),
            asked => asked,
        };
        if target == 0 {
            return self
                .give_up(NOT_FOUND, "Unable to find last revision.")
                .await;
        }
        let found = self.sets().find(|set| revision::revision(set) == target);
        let Some(set) = found.cloned() else {
            let message = "Unable to find the revision to rollback to.";
            return self.give_up(NOT_FOUND, message).await;
        };
        let own = set.spec.as_ref().and_then(|spec| spec.template.clone());
        let own = own.unwrap_or_default();
        let name = self.deployment.name_any();
        let mut rolled_back = self.deployment.clone();
        let spec = rolled_back.spec.get_or_insert_default();
        if equal_but_for_hash(&own, &spec.template) {
            let message = format!(
                "The rollback revision contains the same template as current deployment \"{name}\""
            );
            return self.give_up(UNCHANGED, &message).await;
        }
        // The hash label belongs only to the ReplicaSet's template.
        spec.template = without_hash(own);
        *rolled_back.annotations_mut() =
            revision::annotations_after_rollback(&self.deployment, &set);
        // Template and annotation are written together, so the request cannot be carried out twice.
        self.answer(rolled_back).await?;
        let message = format!("Rolled back deployment \"{name}\" to revision {target}");
        self.recorder.normal(&self.deployment, DONE, message);
        Ok(())
    }

    async fn give_up(&self, reason: &'static str, message: &str) -> Result<(), Error> {
        self.recorder.warning(&self.deployment, reason, message);
        self.answer(self.deployment.clone()).await
    }

    /// Writes the Deployment without the rollback request.
    async fn answer(&self, mut deployment: Deployment) -> Result<(), Error> {
        deployment.annotations_mut().remove(ROLLBACK_TO);
        self.deployments()
            .replace(&deployment.name_any(), &PostParams::default(), &deployment)
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
