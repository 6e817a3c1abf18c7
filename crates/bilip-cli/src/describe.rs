//! `certify` and `inspect`: what is proved of a model, and what it holds.

use anyhow::{Context, Result};
use bilip::{BiLipNet, BiLipschitz, ImageStep, Model, MonLip, Network, Real, Stored};
use serde_json::json;

use crate::Outcome;
use crate::args;
use crate::model;
use crate::text::{list, print, shown};

pub fn certify(args: &args::Certify) -> Result<Outcome> {
    let model = Model::load(&args.model).with_context(|| args.model.display().to_string())?;
    let certificate = model.verify();
    if args.json {
        print(&(serde_json::to_string_pretty(&certificate)? + "\n"))?;
    } else {
        print(&certificate.to_string())?;
    }
    if certificate.holds() {
        return Ok(Outcome::Done);
    }
    eprintln!("the bounds that the model claims are not proved for its stored weights");
    Ok(Outcome::NotMet)
}

/// The layers of a network in words, and the number of stored weights.
fn layers<T: Real>(network: &Network<T>) -> (Vec<String>, usize) {
    fn monotone<T: Real>(l: &MonLip<T>) -> (String, usize) {
        let b = l.design();
        let text = format!(
            "monotone: widths {:?}, {}, bounds ({}, {})",
            l.units(),
            l.activation(),
            b.mu(),
            b.nu()
        );
        let count = l.v().iter().map(|v| v.nrows() * v.ncols()).sum::<usize>()
            + l.s().nrows() * l.s().ncols()
            + l.hidden_bias().len()
            + l.output_bias().len()
            + l.psi().map_or(0, <[T]>::len);
        (text, count)
    }
    fn net<T: Real>(g: &BiLipNet<T>) -> (Vec<String>, usize) {
        let n = g.dim();
        let mut text = Vec::new();
        let mut count = 0;
        if let Some(s) = g.input() {
            text.push(format!("inputs scaled by {:?}", numbers(s.scale())));
            count += 2 * n;
        }
        for (k, _) in g.orthogonal().iter().enumerate() {
            text.push(format!("orthogonal: {n}x{n}"));
            count += n * n + n;
            if let Some(l) = g.monotone().get(k) {
                let (line, weights) = monotone(l);
                text.push(line);
                count += weights;
            }
        }
        if let Some(s) = g.output() {
            text.push(format!("outputs scaled by {:?}", numbers(s.scale())));
            count += 2 * n;
        }
        (text, count)
    }
    /// Widths and number of weights.
    fn perceptron<T: Real>(mlp: &bilip::Mlp<T>) -> (Vec<usize>, usize) {
        let mut sizes = vec![mlp.inputs()];
        sizes.extend(mlp.layers().iter().map(|(_, b)| b.len()));
        let weights = mlp.layers().iter().map(|(w, b)| w.nrows() * w.ncols() + b.len());
        (sizes, weights.sum())
    }
    fn partial<T: Real>(g: &bilip::PartialBiLipNet<T>) -> (Vec<String>, usize) {
        let (mut text, mut count) = net(g.net());
        // The network's own biases play no part.
        count -= g.net().orthogonal().iter().map(|l| l.bias().len()).sum::<usize>();
        count -= g
            .net()
            .monotone()
            .iter()
            .map(|l| l.hidden_bias().len())
            .sum::<usize>();
        for mlp in g.orthogonal_bias().iter().chain(g.hidden_bias()) {
            let (sizes, weights) = perceptron(mlp);
            text.push(format!("bias network: {sizes:?}"));
            count += weights;
        }
        (text, count)
    }
    match network {
        Network::MonLip(l) => {
            let (line, count) = monotone(l);
            (vec![line], count)
        }
        Network::BiLipNet(g) => net(g),
        Network::PlNet(f) => net(f.net()),
        Network::PartialBiLipNet(g) => partial(g),
        Network::PartialPlNet(f) => {
            let (mut text, mut count) = partial(f.net());
            if let Some(mlp) = f.offset_network() {
                let (sizes, weights) = perceptron(mlp);
                text.push(format!("offset network: {sizes:?}"));
                count += weights;
            }
            (text, count)
        }
        Network::Classifier(c) => {
            let (mut text, mut count) = net(c.net());
            let (process, weights) = process(c.head(), c.net().dim());
            text.push(process);
            count += weights;
            (text, count)
        }
        Network::ConvBiLipNet(g) => images(&[Step::Block(g)]),
        Network::ImageFeatures(f) => features(f),
        Network::ImageClassifier(c) => {
            let (mut text, count) = features(c.features());
            let (process, weights) = process(c.head(), c.features().outputs());
            text.push(process);
            (text, count + weights)
        }
        _ => (Vec::new(), 0),
    }
}

enum Step<'a, T> {
    Block(&'a bilip::ConvBiLipNet<T>),
    Convolution(&'a bilip::Convolution<T>, f64),
}

fn features<T: Real>(f: &bilip::ImageFeatures<T>) -> (Vec<String>, usize) {
    let steps: Vec<Step<'_, T>> = (f.steps().iter())
        .filter_map(|step| match step {
            ImageStep::Block(net) => Some(Step::Block(net)),
            ImageStep::Convolution(c, bound) => Some(Step::Convolution(c, *bound)),
            _ => None,
        })
        .collect();
    let (mut text, count) = images(&steps);
    let channels = f.projection().ncols();
    text.push(format!(
        "channels scaled, relu, mean over the image, {channels} to {} outputs",
        f.outputs()
    ));
    (text, count + channels * (2 + f.outputs()))
}

fn images<T: Real>(steps: &[Step<'_, T>]) -> (Vec<String>, usize) {
    let (mut text, mut count) = (Vec::new(), 0);
    for step in steps {
        match step {
            Step::Convolution(c, bound) => {
                let ([inputs, outputs], kernel) = (c.channels(), c.kernel());
                text.push(format!(
                    "convolution: {inputs} to {outputs} channels, {kernel}x{kernel}, stride {}, norm {bound}",
                    c.stride()
                ));
                count += c.weight().len();
            }
            Step::Block(net) => {
                let (c, s) = (net.channels(), net.image());
                for l in net.monotone() {
                    let b = l.design();
                    text.push(format!(
                        "monotone on images: {c} channels {s}x{s}, hidden channels {:?}, {}, bounds ({}, {})",
                        l.units(),
                        l.activation(),
                        b.mu(),
                        b.nu()
                    ));
                    text.push(format!("orthogonal: {c}x{c} at every pixel"));
                    count += l.weights() + c * (c + 1);
                }
            }
        }
    }
    (text, count)
}

/// The process of a classifier in words, and its numbers.
fn process(head: &bilip::GpHead, inputs: usize) -> (String, usize) {
    let (d, classes) = (head.features().count(), head.outputs());
    (
        format!("Gaussian process: {d} random features, {classes} classes"),
        d * (inputs + 1 + classes) + classes + d * (d + 1) / 2,
    )
}

fn numbers<T: Real>(values: &[T]) -> Vec<f64> {
    values.iter().map(|v| v.as_f64()).collect()
}

pub fn inspect(args: &args::Inspect) -> Result<Outcome> {
    let model = model::read(&args.model)?;
    let (lines, count) = match &model.network {
        Stored::F32(n) => layers(n),
        Stored::F64(n) => layers(n),
    };
    let precision = model.precision().to_string();
    let stored = model.stored_certificate();
    if args.json {
        let report = json!({
            "kind": model.kind_name(),
            "precision": precision,
            "n": model.dim(),
            "parameters": model.parameters(),
            "inputs": if model.image().is_some() { Vec::new() } else { model.inputs() },
            "image": model.image().map(|(channels, side)| json!({ "channels": channels, "side": side })),
            "targets": if model.image().is_some() { Vec::new() } else { model.targets() },
            "weights": count,
            "layers": lines,
            "certificate": stored,
            "provenance": model.provenance,
        });
        print(&(serde_json::to_string_pretty(&report)? + "\n"))?;
        return Ok(Outcome::Done);
    }
    let mut text = format!("{}, {precision}, {count} stored weights\n", model.kind_name());
    text += &match model.image() {
        Some((channels, side)) => format!("  inputs      images, {channels} channels of {side}x{side}\n"),
        None => format!("  inputs      {}\n", list(&model.inputs())),
    };
    if model.parameters() > 0 {
        text += &format!("  parameters  {}\n", list(&model.parameter_names()));
    }
    text += &match model.image().filter(|_| model.classes().is_none()) {
        Some(_) => format!("  outputs     {} numbers\n", model.outputs()),
        None => format!("  outputs     {}\n", list(&model.targets())),
    };
    let claim = model.claim();
    text += &format!(
        "  claims      mu = {}, nu = {}; bilip certify proves it or not\n",
        claim.mu(),
        claim.nu()
    );
    for (k, line) in lines.iter().enumerate() {
        text += &format!("  layer {k}: {line}\n");
    }
    for (key, value) in &model.provenance {
        text += &format!("  {}: {}\n", shown(key), shown(value));
    }
    print(&text)?;
    Ok(Outcome::Done)
}
