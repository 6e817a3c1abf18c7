//! Every file of golden values reproduced: outputs and explicit weights within 1e-12 relative in
//! f64, 1e-5 in f32.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bilip::faer::Mat;
use bilip::{
    Activation, BiLipNet, BiLipNetFree, BiLipschitz, Bounds, Mlp, MonLip, MonLipFree, Orthogonal,
    PartialBiLipNet, PlNet, Real, cayley, with_norm,
};
use safetensors::SafeTensors;

/// One file: tensors as f64 with their shapes, and the metadata.
struct Fixture {
    name: String,
    tensors: HashMap<String, (Vec<usize>, Vec<f64>)>,
    metadata: HashMap<String, String>,
}

impl Fixture {
    fn read(path: &Path) -> Fixture {
        let bytes = std::fs::read(path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let tensors = file
            .tensors()
            .into_iter()
            .map(|(name, view)| {
                let values = match view.dtype() {
                    safetensors::Dtype::F32 => view
                        .data()
                        .chunks_exact(4)
                        .map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap())))
                        .collect(),
                    safetensors::Dtype::F64 => view
                        .data()
                        .chunks_exact(8)
                        .map(|b| f64::from_le_bytes(b.try_into().unwrap()))
                        .collect(),
                    other => panic!("{other:?}"),
                };
                // `param/BiLipBlock.mon_0.Fq` and `state/bln.mon_layers.0.Fq` are spelled without
                // their prefixes below.
                let name = name
                    .replace("param/BiLipBlock.", "param/")
                    .replace("state/bln.", "state/");
                (name, (view.shape().to_vec(), values))
            })
            .collect();
        Fixture {
            name: path.file_stem().unwrap().to_string_lossy().into_owned(),
            tensors,
            metadata: header.metadata().clone().unwrap_or_default(),
        }
    }

    fn has(&self, key: &str) -> bool {
        self.tensors.contains_key(key)
    }

    fn vector(&self, key: &str) -> Vec<f64> {
        self.tensors
            .get(key)
            .unwrap_or_else(|| panic!("{}: {key}", self.name))
            .1
            .clone()
    }

    fn scalar(&self, key: &str) -> f64 {
        self.vector(key)[0]
    }

    fn matrix(&self, key: &str) -> Mat<f64> {
        let (shape, values) = &self.tensors[key];
        Mat::from_fn(shape[0], shape[1], |i, j| values[i * shape[1] + j])
    }

    fn scaled(&self, matrix: &str, scale: &str) -> Mat<f64> {
        with_norm(self.matrix(matrix).as_ref(), self.scalar(scale))
    }

    fn meta(&self, key: &str) -> serde_json::Value {
        serde_json::from_str(&self.metadata[key]).unwrap()
    }

    fn kind(&self) -> Option<String> {
        self.metadata
            .contains_key("kind")
            .then(|| self.meta("kind").as_str().unwrap().to_string())
    }

    fn bounds(&self) -> Bounds {
        Bounds::new(
            self.meta("mu").as_f64().unwrap(),
            self.meta("nu").as_f64().unwrap(),
        )
        .unwrap()
    }

    fn activation(&self) -> Activation {
        self.meta("activation").as_str().unwrap().parse().unwrap()
    }

    /// `F^q` to `by` of a published JAX layer under a prefix such as `param/mon_0.`.
    fn monlip(&self, prefix: &str, bounds: Bounds) -> MonLipFree {
        let layers = (0..).take_while(|k| self.has(&format!("{prefix}Fab{k}"))).count();
        let fq = self
            .scaled(&format!("{prefix}Fq"), &format!("{prefix}fq"))
            .transpose()
            .to_owned();
        let hidden_bias = if self.has(&format!("{prefix}b0")) {
            (0..layers)
                .flat_map(|k| self.vector(&format!("{prefix}b{k}")))
                .collect()
        } else {
            vec![0.0; fq.nrows()]
        };
        MonLipFree {
            bounds,
            activation: self.activation(),
            fp: None,
            fab: (0..layers)
                .map(|k| self.scaled(&format!("{prefix}Fab{k}"), &format!("{prefix}fab{k}")))
                .collect(),
            log_psi: None,
            hidden_bias,
            output_bias: self.vector(&format!("{prefix}by")),
            fq,
        }
    }

    fn net(&self) -> BiLipNetFree {
        let depth = self.meta("depth").as_u64().unwrap() as usize;
        let mut free = BiLipNetFree {
            bounds: self.bounds(),
            orthogonal: (0..=depth)
                .map(|k| {
                    let w = self.scaled(&format!("param/uni_{k}.W"), &format!("param/uni_{k}.a"));
                    let key = format!("param/uni_{k}.b");
                    let bias = if self.has(&key) {
                        self.vector(&key)
                    } else {
                        vec![0.0; w.nrows()]
                    };
                    (w, bias)
                })
                .collect(),
            monotone: (0..depth)
                .map(|k| self.monlip(&format!("param/mon_{k}."), self.bounds()))
                .collect(),
        };
        free.share_bounds().unwrap();
        free
    }

    /// The PyTorch layers: `[A_j B_j] = cayley(Fr.j)` is the transpose of ours, and the bounds are
    /// stored per block.
    fn torch_net(&self) -> BiLipNetFree {
        let depth = self.meta("depth").as_u64().unwrap() as usize;
        let monotone: Vec<MonLipFree> = (0..depth)
            .map(|k| {
                let at = |name: &str| format!("state/mon_layers.{k}.{name}");
                let layers = (0..).take_while(|j| self.has(&at(&format!("Fr.{j}")))).count();
                MonLipFree {
                    bounds: Bounds::new(self.scalar(&at("mu")), self.scalar(&at("nu"))).unwrap(),
                    activation: self.activation(),
                    fq: self.scaled(&at("Fq"), &at("fq")),
                    fp: None,
                    fab: (0..layers)
                        .map(|j| {
                            self.scaled(&at(&format!("Fr.{j}")), &at(&format!("fr.{j}")))
                                .transpose()
                                .to_owned()
                        })
                        .collect(),
                    log_psi: None,
                    hidden_bias: (0..layers)
                        .flat_map(|j| self.vector(&at(&format!("bs.{j}"))))
                        .collect(),
                    output_bias: self.vector(&at("by")),
                }
            })
            .collect();
        let product = |f: fn(&Bounds) -> f64| monotone.iter().map(|m| f(&m.bounds)).product();
        BiLipNetFree {
            bounds: Bounds::new(product(Bounds::mu), product(Bounds::nu)).unwrap(),
            orthogonal: (0..=depth)
                .map(|k| {
                    let at = |name: &str| format!("state/orth_layers.{k}.{name}");
                    (self.scaled(&at("weight"), &at("alpha")), self.vector(&at("bias")))
                })
                .collect(),
            monotone,
        }
    }

    fn mlp(&self, prefix: &str) -> Mlp<f64> {
        let layers = (0..)
            .map_while(|i| {
                let key = format!("{prefix}.Dense_{i}.kernel");
                self.has(&key).then(|| {
                    (
                        self.matrix(&key).transpose().to_owned(),
                        self.vector(&format!("{prefix}.Dense_{i}.bias")),
                    )
                })
            })
            .collect();
        Mlp::new(layers).unwrap()
    }
}

fn narrow<T: Real>(values: &[f64]) -> Vec<T> {
    values.iter().map(|v| T::round_from(*v)).collect()
}

/// Largest difference relative to the largest entry.
fn relative<T: Real>(found: &[T], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let scale = expected.iter().fold(0.0f64, |a, v| a.max(v.abs()));
    found
        .iter()
        .zip(expected)
        .fold(0.0f64, |a, (f, e)| a.max((f.as_f64() - e).abs()))
        / scale
}

fn row_major(m: bilip::faer::MatRef<'_, f64>) -> Vec<f64> {
    (0..m.nrows())
        .flat_map(|i| (0..m.ncols()).map(move |j| m[(i, j)]))
        .collect()
}

fn outputs<T: Real>(f: &Fixture) -> Vec<T> {
    let x: Vec<T> = narrow(&f.vector("x"));
    let torch = f.metadata.get("source").is_some_and(|s| s.contains("torch"));
    match f.kind().unwrap().as_str() {
        "orthogonal" => {
            let w = f.scaled("param/W", "param/a");
            Orthogonal::<T>::from_free(w.as_ref(), &f.vector("param/b"))
                .unwrap()
                .forward(&x)
                .unwrap()
        }
        "monlip" => MonLip::<T>::from_free(&f.monlip("param/", f.bounds()))
            .unwrap()
            .forward(&x)
            .unwrap(),
        "bilipnet" => {
            let free = if torch { f.torch_net() } else { f.net() };
            BiLipNet::<T>::from_free(&free).unwrap().forward(&x).unwrap()
        }
        "plnet" if torch => {
            let net = BiLipNet::<T>::from_free(&f.torch_net()).unwrap();
            let n = net.dim() as f64;
            // Its potential is a mean: ½‖G‖²/n + c.
            let values = PlNet::new(net, 0.0).unwrap().value(&x).unwrap();
            values
                .iter()
                .map(|v| T::round_from(v.as_f64() / n + f.scalar("state/bias")))
                .collect()
        }
        "plnet" => {
            let net = BiLipNet::<T>::from_free(&f.net()).unwrap();
            PlNet::new(net, f.scalar("param/QuadPotential_0.c"))
                .unwrap()
                .value(&x)
                .unwrap()
        }
        "partial_bilipnet" => partial(f).forward(&x, &narrow(&f.vector("p"))).unwrap(),
        other => panic!("{}: unknown kind {other}", f.name),
    }
}

/// The gradient of `sum(cotangent · y)` in x, in f64.
fn input_gradient(f: &Fixture) -> Vec<f64> {
    let (x, w) = (f.vector("x"), f.vector("cotangent"));
    match f.kind().unwrap().as_str() {
        "orthogonal" => {
            let free = f.scaled("param/W", "param/a");
            Orthogonal::<f64>::from_free(free.as_ref(), &f.vector("param/b"))
                .unwrap()
                .vjp(&x, &w)
                .unwrap()
        }
        "monlip" => MonLip::<f64>::from_free(&f.monlip("param/", f.bounds()))
            .unwrap()
            .vjp(&x, &w)
            .unwrap(),
        "bilipnet" => BiLipNet::<f64>::from_free(&f.net()).unwrap().vjp(&x, &w).unwrap(),
        "plnet" => {
            let net = BiLipNet::<f64>::from_free(&f.net()).unwrap();
            let n = net.dim();
            let gradient = PlNet::new(net, 0.0).unwrap().gradient(&x).unwrap();
            gradient.iter().enumerate().map(|(i, g)| g * w[i / n]).collect()
        }
        "partial_bilipnet" => partial::<f64>(f).vjp(&x, &f.vector("p"), &w).unwrap(),
        other => panic!("{}: unknown kind {other}", f.name),
    }
}

fn partial<T: Real>(f: &Fixture) -> PartialBiLipNet<T> {
    let depth = f.meta("depth").as_u64().unwrap() as usize;
    let net = BiLipNet::<T>::from_free(&f.net()).unwrap();
    let orthogonal = (0..=depth)
        .map(|k| f.mlp(&format!("param/uni_b_{k}")).convert())
        .collect();
    let hidden = (0..depth)
        .map(|k| f.mlp(&format!("param/mon_b_{k}")).convert())
        .collect();
    PartialBiLipNet::new(net, orthogonal, hidden).unwrap()
}

fn check(f: &Fixture) {
    let Some(kind) = f.kind() else {
        // A bare Cayley transform.
        let r = cayley(f.matrix("W").as_ref()).unwrap();
        let error = relative(&row_major(r.as_ref()), &f.vector("R"));
        let w32 = f.matrix("W");
        let w32 = Mat::<f32>::from_fn(w32.nrows(), w32.ncols(), |i, j| w32[(i, j)] as f32);
        let r32 = cayley(w32.as_ref()).unwrap();
        let r32 = Mat::<f64>::from_fn(r32.nrows(), r32.ncols(), |i, j| f64::from(r32[(i, j)]));
        let error32 = relative(&row_major(r32.as_ref()), &f.vector("R"));
        println!("{:22} R {error:.1e}, in f32 {error32:.1e}", f.name);
        assert!(error < 1e-12 && error32 < 1e-5);
        return;
    };
    let (e64, e32) = (
        relative(&outputs::<f64>(f), &f.vector("y")),
        relative(&outputs::<f32>(f), &f.vector("y")),
    );
    println!("{:22} y {e64:.1e}, in f32 {e32:.1e}", f.name);
    assert!(e64 < 1e-12, "{}: {e64:.2e}", f.name);
    assert!(e32 < 1e-5, "{}: {e32:.2e}", f.name);
    if f.has("grad/x") {
        let error = relative(&input_gradient(f), &f.vector("grad/x"));
        println!("{:22} dx {error:.1e}", f.name);
        assert!(error < 1e-12, "{}: {error:.2e}", f.name);
    }
    if kind == "monlip" {
        let layer = MonLip::<f64>::from_free(&f.monlip("param/", f.bounds())).unwrap();
        let single = MonLip::<f32>::from_free(&f.monlip("param/", f.bounds())).unwrap();
        let wide = single.to_f64();
        let compare = |name: &str, a: bilip::faer::MatRef<'_, f64>, b: bilip::faer::MatRef<'_, f64>| {
            let expected = f.vector(&format!("explicit/{name}"));
            let (e64, e32) = (
                relative(&row_major(a), &expected),
                relative(&row_major(b), &expected),
            );
            println!("{:22} {name} {e64:.1e}, in f32 {e32:.1e}", f.name);
            assert!(e64 < 1e-12 && e32 < 1e-5, "{} {name}", f.name);
        };
        compare("S", layer.s(), wide.s());
        for k in 0..layer.v().len() {
            compare(
                &format!("V{}", k + 1),
                layer.v()[k].as_ref(),
                wide.v()[k].as_ref(),
            );
        }
    }
}

#[test]
fn every_golden_file_is_reproduced() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "safetensors"))
        .collect();
    files.sort();
    assert!(files.len() >= 15, "golden files are missing");
    for path in files {
        check(&Fixture::read(&path));
    }
}
