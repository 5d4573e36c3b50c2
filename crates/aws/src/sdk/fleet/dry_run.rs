//! Dry runs of a launch's calls, which tell whether IAM allows them (AWS provider: `nodeclass/validation.go`).
//!
//! The launch template is created as for a launch: the dry runs of the other calls name it, because a policy may allow them for
//! certain templates only. Nothing here retries, so that a check does not use up the calls that launches need.

use aws_sdk_ec2::{
    config::Builder,
    types::{
        InstanceNetworkInterfaceSpecification, LaunchTemplateSpecification, ResourceType,
        TagSpecification,
    },
};
use aws_smithy_types::retry::RetryConfig;
use mullion_api::karpenter::EC2NodeClassSpec;
use mullion_cloud::{CloudError, DeniedCall, LaunchCall, LaunchOption, LaunchRequest};

use super::{
    super::{Inner, errors::Failed, filters::to_tags, template::Template},
    Candidate, Order, is_template_gone, no_candidate, shared_tags,
};
use crate::{codes, limits::Kind};

/// A template and its candidates.
type Group<'c, 'a> = (Template, Vec<&'c Candidate<'a>>);

impl Inner {
    /// Returns the first call of a launch that IAM does not allow.
    pub(in crate::sdk) async fn denied_call(
        &self,
        request: LaunchRequest,
    ) -> Result<Option<DeniedCall>, CloudError> {
        let usual = EC2NodeClassSpec::default();
        let order = self.order(&request, &usual).await?;
        let options: Vec<_> = request.options.iter().collect();
        let candidates = self.candidates(&order, &options).await;
        let first = candidates.first().ok_or_else(no_candidate)?;
        let groups = self.templates_of(&order, &candidates, None)?;
        for call in LaunchCall::ALL {
            let tried = match call {
                LaunchCall::CreateLaunchTemplate => self.create_templates(&order, &groups).await,
                LaunchCall::CreateFleet => self.try_fleet(&order, &groups, first.option).await,
                LaunchCall::RunInstances => self.try_instances(&order, &groups).await,
            };
            match tried {
                Ok(()) => {}
                Err(failed) if failed.is("UnauthorizedOperation") => {
                    let message = failed.message;
                    return Ok(Some(DeniedCall { call, message }));
                }
                Err(failed) => {
                    if is_template_gone(&failed) {
                        // Another process has deleted unused templates; the next check creates them again.
                        groups
                            .iter()
                            .for_each(|(own, _)| self.miss_template(&own.name));
                    }
                    return Err(failed.into());
                }
            }
        }
        Ok(None)
    }

    async fn create_templates(
        &self,
        order: &Order<'_>,
        groups: &[Group<'_, '_>],
    ) -> Result<(), Failed> {
        let tags = shared_tags(&order.tags);
        for (template, _) in groups {
            self.ensure_template(template, &tags).await?;
        }
        Ok(())
    }

    async fn try_fleet(
        &self,
        order: &Order<'_>,
        groups: &[Group<'_, '_>],
        option: &LaunchOption,
    ) -> Result<(), Failed> {
        self.may(Kind::Launch).await;
        let request = self.fleet_request(order, groups, None, option);
        let sent = request
            .dry_run(true)
            .customize()
            .config_override(without_retries())
            .send()
            .await;
        allowed(sent.map(drop).map_err(Failed::of))
    }

    /// Tries RunInstances in one subnet after another until one succeeds. Returns the failure in the first one if all fail.
    async fn try_instances(
        &self,
        order: &Order<'_>,
        groups: &[Group<'_, '_>],
    ) -> Result<(), Failed> {
        let mut outcome = Ok(());
        for (template, candidates) in groups {
            for candidate in candidates {
                match self.try_instance(order, template, candidate).await {
                    Ok(()) => return Ok(()),
                    Err(failed) => outcome = outcome.and(Err(failed)),
                }
            }
        }
        outcome
    }

    async fn try_instance(
        &self,
        order: &Order<'_>,
        template: &Template,
        candidate: &Candidate<'_>,
    ) -> Result<(), Failed> {
        self.may(Kind::Launch).await;
        let named = LaunchTemplateSpecification::builder()
            .launch_template_name(&template.name)
            .version("$Latest");
        let tagged = [
            ResourceType::Instance,
            ResourceType::Volume,
            ResourceType::NetworkInterface,
        ];
        let tagged = tagged.into_iter().map(|kind| {
            TagSpecification::builder()
                .resource_type(kind)
                .set_tags(Some(to_tags(&order.tags)))
                .build()
        });
        let sent = self
            .ec2
            .run_instances()
            .dry_run(true)
            .min_count(1)
            .max_count(1)
            .launch_template(named.build())
            .instance_type(candidate.option.instance_type.as_str().into())
            .set_network_interfaces(Some(interfaces(order.class, &candidate.subnet.id)))
            .set_tag_specifications(Some(tagged.collect()))
            .customize()
            .config_override(without_retries())
            .send()
            .await;
        allowed(sent.map(drop).map_err(Failed::of))
    }
}

/// Returns the class's network interfaces in a subnet.
fn interfaces(
    class: &EC2NodeClassSpec,
    subnet: &str,
) -> Vec<InstanceNetworkInterfaceSpecification> {
    let interface = || InstanceNetworkInterfaceSpecification::builder().subnet_id(subnet);
    if class.network_interfaces.is_empty() {
        return vec![interface().device_index(0).build()];
    }
    let all = class.network_interfaces.iter().map(|own| {
        interface()
            .network_card_index(own.network_card_index)
            .device_index(own.device_index)
            .interface_type(&own.interface_type)
            .build()
    });
    all.collect()
}

fn without_retries() -> Builder {
    Builder::new().retry_config(RetryConfig::disabled())
}

/// Returns the failure of a dry run, except for the error that says that the call would have succeeded.
fn allowed(sent: Result<(), Failed>) -> Result<(), Failed> {
    match sent {
        Err(failed) if !failed.code.as_deref().is_some_and(codes::is_dry_run) => Err(failed),
        _ => Ok(()),
    }
}
