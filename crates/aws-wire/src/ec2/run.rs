//! RunInstances: launches up to `MaxCount` instances of one type.

use std::sync::Arc;

use mullion_cloud::{
    CapacityType, CloudProvider, Instance, Launch, LaunchOption, catalogue, catalogue::price,
};

use super::{
    Call, Name,
    instances::write,
    launch::{
        self, IdempotentResult, LaunchOrder, LaunchSpec, check_architecture, image, unsupported,
    },
    launch_templates::{TemplateRef, check_version},
};
use crate::refusal::Refusal;

/// The maximum number of instances of one request.
const MOST: i64 = 1000;

/// RunInstances.
pub(super) async fn run(call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
    let root = call.root();
    let mut spec = LaunchSpec::of_template(&root)?;
    let given = root.at("LaunchTemplate");
    let mut template_tags = Vec::new();
    if given.is_given() {
        let named = TemplateRef::read(&given)?;
        let version = given.text("Version").unwrap_or("$Default");
        let state = call.state();
        let template = state.template(&named)?;
        check_version(template, version)?;
        template_tags.push(("aws:ec2launchtemplate:id".to_owned(), template.id.clone()));
        template_tags.push(("aws:ec2launchtemplate:version".to_owned(), "1".to_owned()));
        spec = spec.with_defaults_of(&template.spec);
    }
    let count = |name: &str| -> Result<u64, Refusal> {
        let number = root.number(name)?.ok_or_else(|| Refusal::missing(name))?;
        let is_right = (1..=MOST).contains(&number);
        let number = u64::try_from(number).ok().filter(|_| is_right);
        number.ok_or_else(|| Refusal::value(format!("{name} must be a number from 1 to {MOST}")))
    };
    let (least, most) = (count("MinCount")?, count("MaxCount")?);
    if least > most {
        return Err(Refusal::value("MinCount must not exceed MaxCount"));
    }
    let token = root.text("ClientToken");
    let wanted = RunRequest::read(call, spec, template_tags)?;
    call.complete()?;
    let Some(token) = token else {
        let instances = wanted.buy(call, "", least, most).await?;
        return Ok(answer(call, &instances));
    };
    let place = call.state().tokens.of(&format!("run/{token}"));
    // Held until the instances are bought, so that a retry that arrives meanwhile gets the same ones.
    let mut place = place.lock().await;
    let fingerprint = call.params.fingerprint();
    if let Some(before) = &*place {
        if before.fingerprint != fingerprint {
            return Err(launch::mismatch());
        }
        // A repeated request shows the instances as they are now, while a fleet's response is repeated literally.
        let ids = before.instances.iter();
        let instances: Vec<_> = ids.filter_map(|id| call.ec2().instance(id)).collect();
        return Ok(answer(call, &instances));
    }
    let instances = wanted.buy(call, token, least, most).await?;
    let xml = answer(call, &instances);
    *place = Some(IdempotentResult {
        fingerprint,
        instances: instances.iter().map(|own| own.id.clone()).collect(),
        xml: xml.clone(),
    });
    Ok(xml)
}

fn answer(call: &Call<'_>, instances: &[Arc<Instance>]) -> Vec<u8> {
    call.answer(|xml| {
        let first = instances
            .first()
            .map(|own| own.id.0.replacen("i-", "r-", 1));
        xml.maybe("reservationId", first);
        xml.leaf("ownerId", call.account_id());
        xml.list("groupSet", [(); 0], |_, ()| ());
        xml.list("instancesSet", instances, |xml, own| write(xml, call, own));
    })
}

struct RunRequest {
    spec: LaunchSpec,
    image: mullion_cloud::image::NodeImage,
    options: Vec<LaunchOption>,
    subnets: Vec<Name>,
    tags: Vec<(String, String)>,
}

impl RunRequest {
    fn read(
        call: &Call<'_>,
        spec: LaunchSpec,
        tags: Vec<(String, String)>,
    ) -> Result<Self, Refusal> {
        let id = spec
            .image
            .as_deref()
            .ok_or_else(|| Refusal::missing("ImageId"))?;
        let image = image(&call.ec2().all_images(), id)?;
        spec.check_groups(call)?;
        let name = spec.instance_type.as_deref().unwrap_or("m1.small");
        let wrong = || Refusal::value(format!("Invalid value '{name}' for InstanceType."));
        let instance_type = catalogue::get(name).ok_or_else(wrong)?;
        check_architecture(instance_type, &image)?;
        spec.check_volumes(&image)?;
        let capacity_type = match (spec.is_spot, &spec.reservation) {
            (true, _) => CapacityType::Spot,
            (false, Some(_)) => CapacityType::Reserved,
            (false, None) => CapacityType::OnDemand,
        };
        let is_sold = instance_type.runs(image.os())
            && price::of(instance_type, image.os(), capacity_type).is_some();
        if !is_sold {
            return Err(unsupported(name, &image, capacity_type));
        }
        let mut places = call.ec2().all_subnets();
        if let Some(id) = &spec.subnet {
            places.retain(|own| *own.id == **id);
            if places.is_empty() {
                let text = format!("The subnet ID '{id}' does not exist");
                return Err(Refusal::new("InvalidSubnetID.NotFound", text));
            }
        }
        if let Some(zone) = &spec.zone {
            places.retain(|own| *own.zone == **zone);
            if places.is_empty() {
                let text = format!("Invalid availability zone: [{zone}]");
                return Err(Refusal::value(text));
            }
        }
        let options = places.iter().map(|place| LaunchOption {
            instance_type: name.to_owned(),
            zone: place.zone.to_string(),
            capacity_type,
            reservation: spec
                .reservation
                .clone()
                .filter(|_| capacity_type == CapacityType::Reserved),
            placement: None,
        });
        Ok(Self {
            options: options.collect(),
            subnets: places.iter().map(|own| own.id.clone()).collect(),
            image,
            tags,
            spec,
        })
    }

    /// Buys up to `most` instances, or none if fewer than `least` are available.
    async fn buy(
        &self,
        call: &Call<'_>,
        token: &str,
        least: u64,
        most: u64,
    ) -> Result<Vec<Arc<Instance>>, Refusal> {
        let name = call.state().ids.request();
        let mut bought = Vec::new();
        for number in 0..most {
            let order = self.spec.order(LaunchOrder {
                token: format!("run/{name}/{number}"),
                image: &self.image,
                options: self.options.clone(),
                subnets: self.subnets.clone(),
                tags: self.tags.iter().cloned().collect(),
            });
            let settled = match call.ec2().launch(order).await {
                Ok(Launch { instance, .. }) => {
                    let settled = self.spec.finish_launch(call, &instance, token).await;
                    settled.map(|()| instance)
                }
                Err(error) => Err(error.into()),
            };
            match settled {
                Ok(instance) => bought.push(instance),
                Err(_) if number >= least => break,
                Err(refusal) => {
                    for instance in bought {
                        // Whether it could be terminated changes nothing for the caller, who learns of no instance.
                        let _ = call.ec2().terminate(Instance::clone(&instance).id).await;
                    }
                    return Err(refusal);
                }
            }
        }
        Ok(bought)
    }
}
