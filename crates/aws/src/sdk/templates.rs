//! The existing launch templates, and the deletion of unused ones.
//!
//! Invariant: only templates with the cluster's tag and our prefix are deleted, and only if they have not been used for a while. If another
//! process deletes a template, the next launch that needs it creates it again.

use std::{collections::BTreeMap, time::Duration};

use aws_sdk_ec2::types::{ResourceType, TagSpecification};

use super::{
    Dated, Inner,
    errors::Failed,
    filters::{filter, to_tags},
    lock,
    template::{NAME_PREFIX, Template},
};
use crate::limits::Kind;

/// The time for which an unused template is kept.
const UNUSED_FOR: Duration = Duration::from_secs(300);
/// The tag with the name of the cluster.
pub(super) const CLUSTER_TAG: &str = "eks:eks-cluster-name";

/// The names of existing templates, with the time of their last use.
#[derive(Debug, Default)]
pub(super) struct Templates(BTreeMap<String, Dated<()>>);

impl Templates {
    /// Returns whether a template exists, and marks it as used now.
    fn uses(&mut self, name: &str) -> bool {
        let known = self.0.get_mut(name);
        known.map(|known| *known = Dated::now(())).is_some()
    }

    /// Removes and returns the templates that have not been used for a while.
    fn take_unused(&mut self) -> Vec<String> {
        let unused = self.0.iter();
        let unused = unused.filter(|(_, own)| own.younger_than(UNUSED_FOR).is_none());
        let names: Vec<_> = unused.map(|(name, _)| name.clone()).collect();
        for name in &names {
            self.0.remove(name);
        }
        names
    }
}

impl Inner {
    /// Creates a template unless it exists.
    pub(super) async fn ensure_template(
        &self,
        template: &Template,
        tags: &BTreeMap<String, String>,
    ) -> Result<(), Failed> {
        let name = &template.name;
        if lock(&self.templates).uses(name) {
            return Ok(());
        }
        self.may(Kind::Describe).await;
        let found = self
            .ec2
            .describe_launch_templates()
            .launch_template_names(name)
            .send()
            .await
            .map_err(Failed::of);
        match found {
            Ok(answer) if !answer.launch_templates().is_empty() => {}
            // Looked up first, because another process or an earlier one may have created it.
            Ok(_) => self.create_template(template, tags).await?,
            Err(failed) if failed.is_not_found() => self.create_template(template, tags).await?,
            Err(failed) => return Err(failed),
        }
        let used = Dated::now(());
        lock(&self.templates).0.insert(name.clone(), used);
        Ok(())
    }

    async fn create_template(
        &self,
        template: &Template,
        tags: &BTreeMap<String, String>,
    ) -> Result<(), Failed> {
        self.may(Kind::Change).await;
        let tagged = TagSpecification::builder()
            .resource_type(ResourceType::LaunchTemplate)
            .set_tags(Some(to_tags(tags)))
            .build();
        let created = self
            .ec2
            .create_launch_template()
            .launch_template_name(&template.name)
            .launch_template_data(template.data.clone())
            .tag_specifications(tagged)
            .send()
            .await
            .map_err(Failed::of);
        match created {
            Ok(_) => {
                tracing::debug!("created launch template {}", template.name);
                Ok(())
            }
            // Another launch has created it already.
            Err(failed) if failed.is("InvalidLaunchTemplateName.AlreadyExistsException") => Ok(()),
            Err(failed) => Err(failed),
        }
    }

    /// Forgets a template that no longer exists.
    pub(super) fn miss_template(&self, name: &str) {
        lock(&self.templates).0.remove(name);
    }

    /// Adopts the templates of earlier processes. Returns whether that has succeeded.
    pub(super) async fn adopt_templates(&self) -> bool {
        self.may(Kind::Describe).await;
        let cluster = &self.settings.cluster.name;
        let mut pages = self
            .ec2
            .describe_launch_templates()
            .filters(filter(format!("tag:{CLUSTER_TAG}"), [cluster]))
            .max_results(200)
            .into_paginator()
            .send();
        let mut names = Vec::new();
        while let Some(page) = pages.next().await {
            match page.map_err(Failed::of) {
                Ok(page) => {
                    let own = page.launch_templates().iter();
                    let own = own.filter_map(|own| own.launch_template_name());
                    names.extend(own.map(str::to_owned));
                }
                Err(failed) => {
                    tracing::debug!("launch templates cannot be described: {}", failed.message);
                    return false;
                }
            }
        }
        let mut templates = lock(&self.templates);
        for name in names
            .into_iter()
            .filter(|name| name.starts_with(NAME_PREFIX))
        {
            templates.0.entry(name).or_insert_with(|| Dated::now(()));
        }
        true
    }

    /// Deletes the templates that have not been used for a while.
    pub(super) async fn drop_unused_templates(&self) {
        let unused = lock(&self.templates).take_unused();
        for name in unused {
            self.may(Kind::Change).await;
            let call = self.ec2.delete_launch_template();
            let deleted = call.launch_template_name(&name).send().await;
            match deleted.map_err(Failed::of) {
                Ok(_) => tracing::debug!("deleted launch template {name}"),
                Err(failed) if failed.is_not_found() => {}
                // The next process of the cluster will adopt it.
                Err(failed) => {
                    tracing::warn!(
                        "launch template {name} cannot be deleted: {}",
                        failed.message
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_template_is_kept_while_it_is_used() {
        let mut templates = Templates::default();
        for name in ["a", "b"] {
            templates.0.insert(name.to_owned(), Dated::now(()));
        }
        tokio::time::advance(UNUSED_FOR - Duration::from_secs(1)).await;
        assert!(templates.uses("a") && !templates.uses("c"));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(templates.take_unused(), ["b"]);
        assert!(templates.uses("a") && !templates.uses("b"));
    }
}
