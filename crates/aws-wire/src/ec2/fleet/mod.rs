//! CreateFleet, for fleets of type `instant`: launches instances of the best available options at once, and reports the error of every option that
//! failed.
//!
//! Invariant: options are tried in the order of the allocation strategy, and each option that fails is reported once.

mod candidates;
mod request;

use std::{collections::BTreeMap, sync::Arc};

use mullion_cloud::{CapacityType, CloudError, CloudProvider, Instance, LaunchOption};

use super::{
    Call, Name,
    launch::{self, IdempotentResult, LaunchOrder, lifecycle},
    unauthorized,
};
use crate::{refusal::Refusal, xml::Xml};
use candidates::{Candidate, candidates};
use request::{Config, Fleet, Override};

/// CreateFleet.
pub(super) async fn create(call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
    let fleet = request::read(call)?;
    let token = call.root().text("ClientToken");
    call.complete()?;
    let Some(token) = token else {
        let (xml, _) = fill(call, &fleet, "").await?;
        return Ok(xml);
    };
    let place = call.state().tokens.of(token);
    // Held until the fleet is bought, so that a retry that arrives meanwhile gets the same result and buys nothing.
    let mut place = place.lock().await;
    let fingerprint = call.params.fingerprint();
    if let Some(before) = &*place {
        return if before.fingerprint == fingerprint {
            Ok(before.xml.clone())
        } else {
            Err(launch::mismatch())
        };
    }
    let (xml, bought) = fill(call, &fleet, token).await?;
    let instances = bought.iter().flat_map(|own| &own.instances);
    *place = Some(IdempotentResult {
        fingerprint,
        instances: instances.map(|own| own.id.clone()).collect(),
        xml: xml.clone(),
    });
    Ok(xml)
}

/// An option that could not be bought, with the error.
struct FailedOption {
    config: usize,
    given: Override,
    zone: Option<Name>,
    capacity_type: CapacityType,
    code: String,
    message: String,
}

/// The instances that were launched for one candidate.
struct LaunchedCandidate {
    candidate: Candidate,
    instances: Vec<Arc<Instance>>,
}

/// Buys the instances of a fleet. Returns the response and the instances.
async fn fill(
    call: &Call<'_>,
    fleet: &Fleet,
    token: &str,
) -> Result<(Vec<u8>, Vec<LaunchedCandidate>), Refusal> {
    let id = format!("fleet-{}", call.state().ids.request());
    let mut bought: Vec<LaunchedCandidate> = Vec::new();
    let mut failed = Vec::new();
    for (capacity_type, count) in &fleet.wanted {
        if *count == 0 {
            continue;
        }
        let mut candidates = candidates(call, fleet, *capacity_type, &mut failed)?;
        // EC2 launches a fleet's instances with the permissions of the caller, so a denial shows as an error of every option.
        if let Some(why) = call.endpoint.denial("ec2:RunInstances") {
            let Refusal { code, message, .. } = unauthorized(&why);
            let refused = candidates.drain(..);
            failed.extend(refused.map(|own| own.failed(&code, &message)));
        }
        for number in 0..*count {
            let name = format!("{id}/{}/{number}", capacity_type.as_str());
            let purchase = Purchase {
                fleet,
                id: &id,
                name,
                token,
            };
            match purchase.make(call, &mut candidates, &mut failed).await {
                Ok(Some((candidate, instance))) => {
                    let same = bought
                        .iter_mut()
                        .find(|own| own.candidate.is_same(&candidate));
                    match same {
                        Some(own) => own.instances.push(instance),
                        None => bought.push(LaunchedCandidate {
                            candidate,
                            instances: vec![instance],
                        }),
                    }
                }
                Ok(None) => break,
                Err(refusal) if bought.is_empty() => return Err(refusal),
                // With an error the caller would never learn of the instances that were bought already.
                Err(_) => break,
            }
        }
    }
    let xml = call.answer(|xml| write(xml, &id, fleet, &failed, &bought));
    Ok((xml, bought))
}

/// The purchase of one instance of a fleet.
struct Purchase<'a> {
    fleet: &'a Fleet,
    id: &'a str,
    /// A name that no other purchase has.
    name: String,
    token: &'a str,
}

impl Purchase<'_> {
    /// Buys one of the candidates. Candidates that cannot be bought are moved to `failed`.
    async fn make(
        &self,
        call: &Call<'_>,
        candidates: &mut Vec<Candidate>,
        failed: &mut Vec<FailedOption>,
    ) -> Result<Option<(Candidate, Arc<Instance>)>, Refusal> {
        let mut attempt = 0;
        // A launch request has one image, so only leading candidates of the first one's image are tried together.
        while let Some(first) = candidates.first() {
            let (config, image) = (first.config, first.image.clone());
            let of_one = |own: &&Candidate| own.config == config && own.image == image;
            let tried = candidates.iter().take_while(of_one).count();
            let tried = &candidates[..tried];
            let template = &self.fleet.configs[config];
            let order = template.spec.order(LaunchOrder {
                token: format!("{}/{attempt}", self.name),
                image: &image,
                options: tried.iter().map(|own| own.option(&template.spec)).collect(),
                subnets: tried.iter().map(|own| own.subnet.clone()).collect(),
                tags: self.tags(template),
            });
            attempt += 1;
            let (instance, refused) = match call.ec2().launch(order).await {
                Ok(launch) => (Some(launch.instance), launch.refused),
                Err(CloudError::InsufficientCapacity(refused)) => (None, refused),
                Err(other) => return Err(other.into()),
            };
            let is_of = |own: &Candidate, option: &LaunchOption| {
                own.config == config && own.option(&template.spec) == *option
            };
            for error in refused {
                let position = candidates.iter().position(|own| is_of(own, &error.option));
                let Some(position) = position else { continue };
                let own = candidates.remove(position);
                let message = error.to_string();
                let code = error.shortage.code();
                let message = message.strip_prefix(&format!("{code}: "));
                failed.push(own.failed(code, message.unwrap_or_default()));
            }
            let Some(instance) = instance else { continue };
            let is_it = |own: &Candidate| {
                own.config == config
                    && own.instance_type.name == instance.instance_type.name
                    && own.zone == instance.zone
            };
            let Some(position) = candidates.iter().position(is_it) else {
                return Err(Refusal::new(
                    "InternalError",
                    "an instance was bought that was not asked for",
                ));
            };
            let Err(refusal) = template
                .spec
                .finish_launch(call, &instance, self.token)
                .await
            else {
                return Ok(Some((candidates[position].clone(), instance)));
            };
            let own = candidates.remove(position);
            failed.push(own.failed(&refusal.code, &refusal.message));
        }
        Ok(None)
    }

    fn tags(&self, template: &Config) -> BTreeMap<String, String> {
        let mut tags = self.fleet.tags.clone();
        let own = [
            ("aws:ec2launchtemplate:id", template.template_id.clone()),
            ("aws:ec2launchtemplate:version", "1".to_owned()),
            ("aws:ec2:fleet-id", self.id.to_owned()),
        ];
        tags.extend(own.map(|(key, value)| (key.to_owned(), value)));
        tags
    }
}

fn write(
    xml: &mut Xml,
    id: &str,
    fleet: &Fleet,
    failed: &[FailedOption],
    bought: &[LaunchedCandidate],
) {
    xml.leaf("fleetId", id);
    xml.list("errorSet", failed, |xml, own| {
        let config = &fleet.configs[own.config];
        write_option(xml, config, &own.given, own.zone.as_ref());
        xml.leaf("lifecycle", lifecycle(own.capacity_type, None));
        xml.leaf("errorCode", &own.code);
        xml.leaf("errorMessage", &own.message);
    });
    xml.list("fleetInstanceSet", bought, |xml, own| {
        let candidate = &own.candidate;
        let config = &fleet.configs[candidate.config];
        write_option(xml, config, &candidate.given, Some(&candidate.zone));
        let reservation = own
            .instances
            .first()
            .and_then(|own| own.reservation.as_ref());
        xml.leaf("lifecycle", lifecycle(candidate.capacity_type, reservation));
        xml.texts("instanceIds", own.instances.iter().map(|own| &own.id));
        xml.leaf("instanceType", &candidate.instance_type.name);
        if candidate.image.os() == mullion_api::ami::Os::Windows {
            xml.leaf("platform", "windows");
        }
    });
}

fn write_option(xml: &mut Xml, config: &Config, given: &Override, zone: Option<&Name>) {
    xml.node("launchTemplateAndOverrides", |xml| {
        xml.node("launchTemplateSpecification", |xml| {
            xml.leaf("launchTemplateId", &config.template_id);
            if !config.by_id {
                xml.leaf("launchTemplateName", &config.template_name);
            }
            xml.leaf("version", &config.version);
        });
        xml.node("overrides", |xml| {
            let name = given.instance_type.as_ref();
            xml.maybe("instanceType", name.or(config.spec.instance_type.as_ref()));
            xml.maybe("maxPrice", given.max_price);
            xml.maybe("subnetId", given.subnet.as_ref());
            let zone = zone.map(|zone| zone.to_string());
            xml.maybe("availabilityZone", zone.or_else(|| given.zone.clone()));
            xml.maybe("priority", given.priority);
            xml.maybe("imageId", given.image.as_ref());
        });
    });
}
