//! ONNX graphs of frozen networks, in plain operators.
//!
//! Only the messages and fields that are used are written down here, with the tags of `onnx.proto`.

use std::collections::BTreeMap;

use faer::{Mat, MatRef, Scale};
use prost::Message;

use crate::base::error::{Error, Result};
use crate::base::real::{Precision, Real};
use crate::certify::Certificate;
use crate::layers::activation::Activation;
use crate::layers::mlp::Mlp;
use crate::layers::monlip::MonLip;
use crate::layers::scaling::Scaling;
use crate::model::{Model, Network, Stored};
use crate::networks::bilipnet::BiLipNet;
use crate::networks::classifier::Classifier;
use crate::networks::map::BiLipschitz;
use crate::networks::partial::PartialBiLipNet;

/// An ONNX file, and what is proved of the constants in it.
#[derive(Clone, Debug)]
pub struct Onnx {
    /// The file.
    pub bytes: Vec<u8>,
    /// The same certificate as in the file's metadata, under the key `bilip`.
    pub certificate: Certificate,
}

impl Model {
    /// The network as an ONNX graph in its own precision, with more texts for its metadata.
    ///
    /// The bounds in the metadata are proved of the graph: of the weights and of the constants that
    /// are written into it ([`MonLip::formula_constants`]), as real numbers. What a runtime rounds
    /// while it evaluates is not covered.
    ///
    /// # Errors
    /// [`Error::NotCertifiable`] when nothing can be proved of the graph, and on networks that ONNX
    /// has no operators for.
    pub fn to_onnx(&self, more: &BTreeMap<String, String>) -> Result<Onnx> {
        fn of<T: Real>(network: &Network<T>, more: &BTreeMap<String, String>) -> Result<Onnx> {
            let certificate = network.certificate_of_constants();
            if certificate.proved().bounds().is_none() {
                return Err(Error::NotCertifiable {
                    what: "graph".into(),
                    reason: "the weights do not satisfy the condition of their layers".into(),
                });
            }
            let mut metadata = more.clone();
            let text = serde_json::to_string(&certificate)
                .map_err(|e| Error::file(format!("the certificate cannot be written: {e}")))?;
            metadata.insert("bilip".into(), text);
            Ok(Onnx {
                bytes: encode(network, &metadata)?,
                certificate,
            })
        }
        match &self.network {
            Stored::F32(n) => of(n, more),
            Stored::F64(n) => of(n, more),
        }
    }
}

/// The operator set: every operator used here has been stable since long before it.
const OPSET: i64 = 21;
/// The version of the format that goes with it.
const IR_VERSION: i64 = 10;

#[derive(Clone, PartialEq, Message)]
struct ModelProto {
    #[prost(int64, tag = "1")]
    ir_version: i64,
    #[prost(string, tag = "2")]
    producer_name: String,
    #[prost(string, tag = "3")]
    producer_version: String,
    #[prost(string, tag = "6")]
    doc_string: String,
    #[prost(message, optional, tag = "7")]
    graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    opset_import: Vec<OperatorSetId>,
    #[prost(message, repeated, tag = "14")]
    metadata_props: Vec<StringEntry>,
}

#[derive(Clone, PartialEq, Message)]
struct OperatorSetId {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(int64, tag = "2")]
    version: i64,
}

#[derive(Clone, PartialEq, Message)]
struct StringEntry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    node: Vec<NodeProto>,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(message, repeated, tag = "5")]
    initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    input: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    output: Vec<ValueInfo>,
}

#[derive(Clone, PartialEq, Message)]
struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    output: Vec<String>,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    op_type: String,
    #[prost(message, repeated, tag = "5")]
    attribute: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int64, tag = "3")]
    i: i64,
    /// 2 is INT.
    #[prost(int32, tag = "20")]
    kind: i32,
}

#[derive(Clone, PartialEq, Message)]
struct TensorProto {
    #[prost(int64, repeated, tag = "1")]
    dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    data_type: i32,
    #[prost(string, tag = "8")]
    name: String,
    #[prost(bytes = "vec", tag = "9")]
    raw_data: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct ValueInfo {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    kind: Option<TypeProto>,
}

#[derive(Clone, PartialEq, Message)]
struct TypeProto {
    #[prost(message, optional, tag = "1")]
    tensor: Option<TensorType>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorType {
    #[prost(int32, tag = "1")]
    elem_type: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<TensorShape>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorShape {
    #[prost(message, repeated, tag = "1")]
    dim: Vec<Dimension>,
}

#[derive(Clone, PartialEq, Message)]
struct Dimension {
    #[prost(oneof = "dimension::Value", tags = "1, 2")]
    value: Option<dimension::Value>,
}

mod dimension {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Value {
        #[prost(int64, tag = "1")]
        Size(i64),
        #[prost(string, tag = "2")]
        Name(String),
    }
}

const FLOAT: i32 = 1;
const DOUBLE: i32 = 11;
const INT64: i32 = 7;

/// A graph under construction.
struct Graph {
    nodes: Vec<NodeProto>,
    tensors: Vec<TensorProto>,
    count: usize,
    data_type: i32,
}

impl Graph {
    /// Adds an operator and returns the name of its output.
    fn node(&mut self, op: &str, inputs: &[&str], attributes: &[(&str, i64)]) -> String {
        self.count += 1;
        let output = format!("{}_{}", op.to_lowercase(), self.count);
        self.nodes.push(NodeProto {
            input: inputs.iter().map(|s| s.to_string()).collect(),
            output: vec![output.clone()],
            name: output.clone(),
            op_type: op.into(),
            attribute: attributes
                .iter()
                .map(|(name, value)| Attribute {
                    name: name.to_string(),
                    i: *value,
                    kind: 2,
                })
                .collect(),
        });
        output
    }

    fn tensor<T: Real>(&mut self, dims: &[usize], values: impl Iterator<Item = T>) -> String {
        self.count += 1;
        let name = format!("weight_{}", self.count);
        let mut raw_data = Vec::new();
        values.for_each(|v| v.write_le(&mut raw_data));
        self.tensors.push(TensorProto {
            dims: dims.iter().map(|d| *d as i64).collect(),
            data_type: self.data_type,
            name: name.clone(),
            raw_data,
        });
        name
    }

    fn vector<T: Real>(&mut self, values: &[T]) -> String {
        self.tensor(&[1, values.len()], values.iter().copied())
    }

    /// A constant that spreads over everything.
    fn constant<T: Real>(&mut self, value: f64) -> String {
        self.tensor(&[1, 1], std::iter::once(T::round_from(value)))
    }

    /// A matrix as it multiplies rows from the right: the transpose.
    fn transposed<T: Real>(&mut self, m: MatRef<'_, T>) -> String {
        let (rows, cols) = m.shape();
        self.tensor(&[cols, rows], (0..rows * cols).map(|k| m[(k % rows, k / rows)]))
    }

    fn activate<T: Real>(&mut self, activation: Activation, v: &str) -> String {
        match activation {
            Activation::Relu => self.node("Relu", &[v], &[]),
            Activation::Tanh => self.node("Tanh", &[v], &[]),
            Activation::Sigmoid => self.node("Sigmoid", &[v], &[]),
            Activation::Identity => v.to_string(),
            // The rest is made of operators that runtimes have in double precision too.
            Activation::LeakyRelu(slope) => {
                // s·v + r·relu(v), with r as large as s + r ≤ 1 allows: beyond, the slope would
                // leave [0, 1].
                let own = T::round_from(slope.get());
                let mut rest = T::round_from(1.0 - own.as_f64());
                while two_sum_exceeds_one(own.as_f64(), rest.as_f64()) {
                    rest = rest.next_down();
                }
                let s = self.constant::<T>(own.as_f64());
                let rest = self.constant::<T>(rest.as_f64());
                let relu = self.node("Relu", &[v], &[]);
                let (a, b) = (
                    self.node("Mul", &[v, &s], &[]),
                    self.node("Mul", &[&relu, &rest], &[]),
                );
                self.node("Add", &[&a, &b], &[])
            }
            Activation::Elu => {
                // relu(v) + (e^{min(v,0)} − 1)
                let (zero, one) = (self.constant::<T>(0.0), self.constant::<T>(1.0));
                let relu = self.node("Relu", &[v], &[]);
                let below = self.node("Min", &[v, &zero], &[]);
                let exp = self.node("Exp", &[&below], &[]);
                let part = self.node("Sub", &[&exp, &one], &[]);
                self.node("Add", &[&relu, &part], &[])
            }
            Activation::Softplus => {
                // relu(v) + ln(1 + e^{−|v|})
                let one = self.constant::<T>(1.0);
                let relu = self.node("Relu", &[v], &[]);
                let size = self.node("Abs", &[v], &[]);
                let minus = self.node("Neg", &[&size], &[]);
                let exp = self.node("Exp", &[&minus], &[]);
                let sum = self.node("Add", &[&exp, &one], &[]);
                let log = self.node("Log", &[&sum], &[]);
                self.node("Add", &[&relu, &log], &[])
            }
            Activation::Arctan => {
                // Runtimes have Atan in single precision only.
                if self.data_type == FLOAT {
                    return self.node("Atan", &[v], &[]);
                }
                let narrow = self.node("Cast", &[v], &[("to", i64::from(FLOAT))]);
                let atan = self.node("Atan", &[&narrow], &[]);
                self.node("Cast", &[&atan], &[("to", i64::from(DOUBLE))])
            }
        }
    }

    /// `F(x)`; the hidden biases of a partial network come as a tensor of their own.
    fn monotone<T: Real>(&mut self, l: &MonLip<T>, x: &str, bias: Option<&str>) -> String {
        let n = l.dim();
        // Those that the certificate in the metadata speaks of.
        let constants = l.formula_constants();
        let gains = [constants.input, constants.output];
        let mut sum: Option<String> = None;
        let mut before: Option<String> = None;
        let mut offset = 0;
        for (k, &width) in l.units().iter().enumerate() {
            let s = l.s().subrows(offset, width);
            let s_in = self.transposed(s);
            let driven = self.node("MatMul", &[x, &s_in], &[]);
            // Vectors, not scalars: runtimes fold a scalar beside a product into a single-precision
            // attribute.
            let [gain_in, gain_out] = gains.map(|g| self.vector(&vec![g; width]));
            let mut v = self.node("Mul", &[&driven, &gain_in], &[]);
            if let Some(z) = &before {
                let weight = self.transposed(l.v()[k - 1].as_ref());
                let product = self.node("MatMul", &[z, &weight], &[]);
                v = self.node("Add", &[&v, &product], &[]);
            }
            let own = match bias {
                None => self.vector(&l.hidden_bias()[offset..offset + width]),
                Some(all) => self.columns(all, offset, width),
            };
            v = self.node("Add", &[&v, &own], &[]);
            let z = match l.psi() {
                None => self.activate::<T>(l.activation(), &v),
                Some(psi) => {
                    let psi = self.vector(&psi[offset..offset + width]);
                    let inner = self.node("Div", &[&v, &psi], &[]);
                    let outer = self.activate::<T>(l.activation(), &inner);
                    self.node("Mul", &[&outer, &psi], &[])
                }
            };
            let s_out = self.tensor(&[width, n], (0..width * n).map(|i| s[(i / n, i % n)]));
            let scaled = self.node("Mul", &[&z, &gain_out], &[]);
            let part = self.node("MatMul", &[&scaled, &s_out], &[]);
            sum = Some(match sum {
                None => part,
                Some(sum) => self.node("Add", &[&sum, &part], &[]),
            });
            before = Some(z);
            offset += width;
        }
        let mu = self.constant::<T>(constants.skip.as_f64());
        let mut y = self.node("Mul", &[x, &mu], &[]);
        if let Some(sum) = sum {
            y = self.node("Add", &[&y, &sum], &[]);
        }
        let bias = self.vector(l.output_bias());
        self.node("Add", &[&y, &bias], &[])
    }

    /// Columns `start..start + count` of a tensor.
    fn columns(&mut self, from: &str, start: usize, count: usize) -> String {
        let mut whole = |values: [i64; 1]| {
            self.count += 1;
            let name = format!("index_{}", self.count);
            self.tensors.push(TensorProto {
                dims: vec![1],
                data_type: INT64,
                name: name.clone(),
                raw_data: values[0].to_le_bytes().to_vec(),
            });
            name
        };
        let (first, last, axis) = (whole([start as i64]), whole([(start + count) as i64]), whole([1]));
        self.node("Slice", &[from, &first, &last, &axis], &[])
    }

    fn scaling<T: Real>(&mut self, s: &Scaling<T>, x: &str) -> String {
        let scale = self.vector(s.scale());
        let shift = self.vector(s.shift());
        let product = self.node("Mul", &[x, &scale], &[]);
        self.node("Add", &[&product, &shift], &[])
    }

    fn perceptron<T: Real>(&mut self, mlp: &Mlp<T>, p: &str) -> String {
        let mut h = p.to_string();
        let last = mlp.layers().len() - 1;
        for (k, (weight, bias)) in mlp.layers().iter().enumerate() {
            let weight = self.transposed(weight.as_ref());
            let bias = self.vector(bias);
            let product = self.node("MatMul", &[&h, &weight], &[]);
            h = self.node("Add", &[&product, &bias], &[]);
            if k < last {
                h = self.node("Relu", &[&h], &[]);
            }
        }
        h
    }

    fn net<T: Real>(&mut self, g: &BiLipNet<T>, x: &str, partial: Option<&PartialBiLipNet<T>>) -> String {
        let mut x = x.to_string();
        if let Some(s) = g.input() {
            x = self.scaling(s, &x);
        }
        for (k, orthogonal) in g.orthogonal().iter().enumerate() {
            let matrix = self.transposed(orthogonal.matrix());
            let rotated = self.node("MatMul", &[&x, &matrix], &[]);
            let bias = match partial {
                None => self.vector(orthogonal.bias()),
                Some(g) => self.perceptron(&g.orthogonal_bias()[k], "p"),
            };
            x = self.node("Add", &[&rotated, &bias], &[]);
            if let Some(l) = g.monotone().get(k) {
                let bias = partial.map(|g| self.perceptron(&g.hidden_bias()[k], "p"));
                x = self.monotone(l, &x, bias.as_deref());
            }
        }
        if let Some(s) = g.output() {
            x = self.scaling(s, &x);
        }
        x
    }

    /// The sum of squares of every row, a column.
    fn squares(&mut self, rows: &str) -> String {
        let square = self.node("Mul", &[rows, rows], &[]);
        self.count += 1;
        let axis = format!("index_{}", self.count);
        self.tensors.push(TensorProto {
            dims: vec![1],
            data_type: INT64,
            name: axis.clone(),
            raw_data: 1i64.to_le_bytes().to_vec(),
        });
        self.node("ReduceSum", &[&square, &axis], &[("keepdims", 1)])
    }

    /// Probabilities of the classes and, in the last column, the uncertainty.
    fn classifier<T: Real>(&mut self, c: &Classifier<T>) -> String {
        let narrow = |m: MatRef<'_, f64>| Mat::from_fn(m.nrows(), m.ncols(), |i, j| T::round_from(m[(i, j)]));
        let numbers = |v: &[f64]| v.iter().map(|v| T::round_from(*v)).collect::<Vec<T>>();
        let head = c.head();
        let d = head.features().count();
        // [I 0]: inputs padded with zeros; transposed like all matrices here.
        let pad = Mat::from_fn(c.net().dim(), c.inputs(), |i, j| {
            if i == j { T::one() } else { T::zero() }
        });
        let pad = self.transposed(pad.as_ref());
        let x = self.node("MatMul", &["x", &pad], &[]);
        let h = self.net(c.net(), &x, None);
        let frequencies = self.transposed(narrow(head.features().frequencies()).as_ref());
        let angle = self.node("MatMul", &[&h, &frequencies], &[]);
        let phases = self.vector(&numbers(head.features().phases()));
        let angle = self.node("Add", &[&angle, &phases], &[]);
        let cosine = self.node("Cos", &[&angle], &[]);
        // The features' factor goes into the matrices: as a node of its own, runtimes fuse it in
        // single precision.
        let scale = Scale((2.0 / d as f64).sqrt());
        let weights = head.weights().transpose() * scale;
        let weights = self.transposed(narrow(weights.as_ref()).as_ref());
        let logits = self.node("MatMul", &[&cosine, &weights], &[]);
        let bias = self.vector(&numbers(head.bias()));
        let logits = self.node("Add", &[&logits, &bias], &[]);
        // σ² = ‖L⁻¹φ‖².
        let mut inverse = Mat::<f64>::identity(d, d) * scale;
        head.factor().solve_lower_triangular_in_place(inverse.as_mut());
        let inverse = self.transposed(narrow(inverse.as_ref()).as_ref());
        let half = self.node("MatMul", &[&cosine, &inverse], &[]);
        let variance = self.squares(&half);
        let factor = self.constant::<T>(c.factor());
        let spread = self.node("Mul", &[&variance, &factor], &[]);
        let one = self.constant::<T>(1.0);
        let spread = self.node("Add", &[&spread, &one], &[]);
        let spread = self.node("Sqrt", &[&spread], &[]);
        let logits = self.node("Div", &[&logits, &spread], &[]);
        let p = self.node("Softmax", &[&logits], &[("axis", 1)]);
        let sure = self.squares(&p);
        let even = self.node("Sub", &[&one, &sure], &[]);
        let classes = c.classes() as f64;
        let share = self.constant::<T>(classes / (classes - 1.0));
        let uncertainty = self.node("Mul", &[&even, &share], &[]);
        self.node("Concat", &[&p, &uncertainty], &[("axis", 1)])
    }

    /// `½Σ(G − center)² + offset`, a column.
    fn potential<T: Real>(&mut self, g: &str, center: Option<&[T]>, offset: f64) -> String {
        let g = match center {
            None => g.to_string(),
            Some(center) => {
                let center = self.vector(center);
                self.node("Sub", &[g, &center], &[])
            }
        };
        let sum = self.squares(&g);
        let half = self.constant::<T>(0.5);
        let value = self.node("Mul", &[&sum, &half], &[]);
        let offset = self.constant::<T>(offset);
        self.node("Add", &[&value, &offset], &[])
    }
}

/// Whether `a + b > 1` in exact arithmetic.
fn two_sum_exceeds_one(a: f64, b: f64) -> bool {
    let sum = a + b;
    let part = sum - a;
    let error = (a - (sum - part)) + (b - part);
    sum > 1.0 || (sum == 1.0 && error > 0.0)
}

fn value_info(name: &str, columns: usize, elem_type: i32) -> ValueInfo {
    let dim = |value| Dimension { value: Some(value) };
    ValueInfo {
        name: name.into(),
        kind: Some(TypeProto {
            tensor: Some(TensorType {
                elem_type,
                shape: Some(TensorShape {
                    dim: vec![
                        dim(dimension::Value::Name("batch".into())),
                        dim(dimension::Value::Size(columns as i64)),
                    ],
                }),
            }),
        }),
    }
}

/// The file of a network, with texts for its metadata. Inputs are `x` and, if it is partial, `p`;
/// the output is `y`.
fn encode<T: Real>(network: &Network<T>, metadata: &BTreeMap<String, String>) -> Result<Vec<u8>> {
    let data_type = match T::PRECISION {
        Precision::F32 => FLOAT,
        Precision::F64 => DOUBLE,
    };
    let mut graph = Graph {
        nodes: Vec::new(),
        tensors: Vec::new(),
        count: 0,
        data_type,
    };
    let n = network.dim();
    let (y, columns, parameters) = match network {
        Network::MonLip(l) => (graph.monotone(l, "x", None), n, 0),
        Network::BiLipNet(g) => (graph.net(g, "x", None), n, 0),
        Network::PlNet(f) => {
            let g = graph.net(f.net(), "x", None);
            let center = match f.minimizer() {
                None => None,
                Some(x) => Some(f.net().forward(x)?),
            };
            (graph.potential(&g, center.as_deref(), f.offset()), 1, 0)
        }
        Network::PartialBiLipNet(g) => (graph.net(g.net(), "x", Some(g)), n, g.parameters()),
        Network::PartialPlNet(f) => {
            let g = graph.net(f.net().net(), "x", Some(f.net()));
            let mut y = graph.potential::<T>(&g, None, f.offset());
            if let Some(network) = f.offset_network() {
                let offset = graph.perceptron(network, "p");
                y = graph.node("Add", &[&y, &offset], &[]);
            }
            (y, 1, f.net().parameters())
        }
        Network::Classifier(c) if !c.head().features().normalized_inputs() => {
            (graph.classifier(c), c.classes() + 1, 0)
        }
        _ => {
            return Err(Error::setting(
                "onnx",
                network.kind_name(),
                "there is no ONNX graph for it (a classifier that normalizes the inputs of its process has none)",
            ));
        }
    };
    graph.nodes.push(NodeProto {
        input: vec![y],
        output: vec!["y".into()],
        name: "output".into(),
        op_type: "Identity".into(),
        attribute: Vec::new(),
    });
    let mut input = vec![value_info("x", n, data_type)];
    if parameters > 0 {
        input.push(value_info("p", parameters, data_type));
    }
    let model = ModelProto {
        ir_version: IR_VERSION,
        producer_name: "bilip".into(),
        producer_version: env!("CARGO_PKG_VERSION").into(),
        doc_string: format!("{} with proved bounds; see the metadata", network.kind_name()),
        graph: Some(GraphProto {
            node: graph.nodes,
            name: "bilip".into(),
            initializer: graph.tensors,
            input,
            output: vec![value_info("y", columns, data_type)],
        }),
        opset_import: vec![OperatorSetId {
            domain: String::new(),
            version: OPSET,
        }],
        metadata_props: metadata
            .iter()
            .map(|(key, value)| StringEntry {
                key: key.clone(),
                value: value.clone(),
            })
            .collect(),
    };
    Ok(model.encode_to_vec())
}
