"""The networks of the zoo: those of torchvision, timm, transformers and diffusers in small, and some written out.

All begin with random weights from a seed; nothing is downloaded. Dropout is off, since no two programs draw alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import diffusers
import timm
import torch
import torch.nn.functional as F
import torchvision
import transformers as hf
from torch import Tensor, nn

Inputs = dict[str, Tensor]

VOCABULARY = 40


@dataclasses.dataclass
class Network:
    """`build` makes the module, `inputs` a batch of some rows; the output is logits with classes on axis 1, or for `mse` any."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]
    loss: str = "cross_entropy"
    lr: float = 0.05
    # Batch normalisation over few values amplifies what f32 rounds: only f64 shows whether two programs agree.
    double: bool = False
    rows: int = 4


def images(size: int, channels: int = 3) -> Callable[[int], Inputs]:
    return lambda rows: {"x": torch.randn(rows, channels, size, size)}


def texts(length: int = 8, **others: int) -> Callable[[int], Inputs]:
    lengths = {"input_ids": length, **others}
    return lambda rows: {name: torch.randint(3, VOCABULARY, (rows, n)) for name, n in lengths.items()}


def vectors(width: int) -> Callable[[int], Inputs]:
    return lambda rows: {"x": torch.randn(rows, width)}


class Text(nn.Module):
    """Logits of a model of texts, classes on axis 1."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        logits = self.model(input_ids=input_ids).logits
        return logits.transpose(1, 2) if logits.dim() == 3 else logits


class Masked(nn.Module):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits


class Translation(nn.Module):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids, decoder_input_ids):
        return self.model(input_ids=input_ids, decoder_input_ids=decoder_input_ids).logits.transpose(1, 2)


class Speech(nn.Module):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x, decoder_input_ids):
        return self.model(input_features=x, decoder_input_ids=decoder_input_ids).logits.transpose(1, 2)


class Output(nn.Module):
    """One output of a model, by its name."""

    def __init__(self, model: nn.Module, name: str):
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x):
        return getattr(self.model(x), self.name)


class Clip(nn.Module):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids, x):
        return self.model(input_ids=input_ids, pixel_values=x).logits_per_image


class Diffusion(nn.Module):
    def __init__(self, model: nn.Module, classes: bool = False):
        super().__init__()
        self.model, self.classes = model, classes

    def forward(self, x, times):
        labels = {"class_labels": times} if self.classes else {}
        return self.model(x, times, **labels).sample


def noisy(size: int, channels: int = 3) -> Callable[[int], Inputs]:
    return lambda rows: {"x": torch.randn(rows, channels, size, size), "times": torch.randint(0, 8, (rows,))}


OFF = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BERT = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 32, "num_labels": 5, "pad_token_id": 0, **OFF,
}  # fmt: skip
LLAMA = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": 32, "use_cache": False,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "attention_dropout": 0.0,
}  # fmt: skip
GEMMA = {**LLAMA, "head_dim": 8, "sliding_window": 4}


def causal(kind: str, **settings) -> Callable[[], nn.Module]:
    def build():
        config = getattr(hf, f"{kind}Config")(**settings)
        return Text(getattr(hf, f"{kind}ForCausalLM")(config))

    return build


def masked_lm(kind: str, **settings) -> Callable[[], nn.Module]:
    return lambda: Text(getattr(hf, f"{kind}ForMaskedLM")(getattr(hf, f"{kind}Config")(**{**BERT, **settings})))


def vision(name: str, **settings) -> Callable[[], nn.Module]:
    return lambda: getattr(torchvision.models, name)(num_classes=5, **settings)


def timm_model(name: str, **settings) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, num_classes=5, pretrained=False, **settings)


def t5() -> nn.Module:
    config = hf.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, dropout_rate=0.0,
        use_cache=False, decoder_start_token_id=0,
    )  # fmt: skip
    return Translation(hf.T5ForConditionalGeneration(config))


def bart() -> nn.Module:
    config = hf.BartConfig(
        vocab_size=VOCABULARY, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=32, dropout=0.0,
        use_cache=False,
    )  # fmt: skip
    return Translation(hf.BartForConditionalGeneration(config))


def whisper() -> nn.Module:
    config = hf.WhisperConfig(
        vocab_size=VOCABULARY, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8, max_source_positions=16,
        max_target_positions=16, dropout=0.0, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    return Speech(hf.WhisperForConditionalGeneration(config))


def clip() -> nn.Module:
    text = {k: v for k, v in BERT.items() if k not in OFF and k != "num_labels"}
    text |= {"bos_token_id": 1, "eos_token_id": 2}
    vision = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
        "image_size": 16, "patch_size": 8,
    }  # fmt: skip
    return Clip(hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)))


def segformer() -> nn.Module:
    config = hf.SegformerConfig(
        num_labels=5, num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[16, 32],
        patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=16,
        drop_path_rate=0.0, classifier_dropout_prob=0.0, **OFF,
    )  # fmt: skip
    return Output(hf.SegformerForSemanticSegmentation(config), "logits")


def hf_vit() -> nn.Module:
    config = hf.ViTConfig(
        image_size=16,
        patch_size=4,
        **{k: v for k, v in BERT.items() if k not in ("vocab_size", "pad_token_id", "max_position_embeddings")},
    )
    return Output(hf.ViTForImageClassification(config), "logits")


def wav2vec2() -> nn.Module:
    config = hf.Wav2Vec2Config(
        vocab_size=12, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2,
        num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, hidden_dropout=0.0, attention_dropout=0.0,
        feat_proj_dropout=0.0, activation_dropout=0.0, layerdrop=0.0, final_dropout=0.0, apply_spec_augment=False,
    )  # fmt: skip
    model = hf.Wav2Vec2ForCTC(config)

    class Frames(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(x).logits.transpose(1, 2)

    return Frames()


def swin2sr() -> nn.Module:
    config = hf.Swin2SRConfig(
        image_size=16, embed_dim=16, depths=[2], num_heads=[2], window_size=4, upscale=2, drop_path_rate=0.0, **OFF
    )
    return Output(hf.Swin2SRForImageSuperResolution(config), "reconstruction")


def unet2d() -> nn.Module:
    return Diffusion(
        diffusers.UNet2DModel(
            sample_size=16, layers_per_block=1, block_out_channels=(16, 32), norm_num_groups=8, attention_head_dim=8,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        )
    )  # fmt: skip


def dit() -> nn.Module:
    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=3, num_layers=2, sample_size=8, patch_size=2,
        num_embeds_ada_norm=8, norm_num_groups=8,
    )  # fmt: skip
    # Its labels are dropped at random as it trains.
    for part in model.modules():
        if hasattr(part, "dropout_prob"):
            part.dropout_prob = 0.0
    return Diffusion(model, classes=True)


def autoencoder() -> nn.Module:
    model = diffusers.AutoencoderKL(
        block_out_channels=(16, 32), down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4, norm_num_groups=8, sample_size=16,
    )  # fmt: skip

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model.decode(self.model.encode(x).latent_dist.mean).sample

    return Mean()


class Tied(nn.Module):
    """A recurrent language model whose head is its embedding's weight."""

    def __init__(self):
        super().__init__()
        self.embedding, self.gru = nn.Embedding(VOCABULARY, 16), nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, input_ids):
        return self.head(self.gru(self.embedding(input_ids))[0]).transpose(1, 2)


class Attentive(nn.Module):
    def __init__(self, layers: int = 2):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.lstm = nn.LSTM(16, 8, num_layers=layers, bidirectional=True, batch_first=True)
        self.score, self.head = nn.Linear(16, 1), nn.Linear(16, 5)

    def forward(self, input_ids):
        y = self.lstm(self.embedding(input_ids))[0]
        return self.head((torch.softmax(self.score(y), 1) * y).sum(1))


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY)
        self.transformer = nn.Transformer(16, 2, 1, 1, 32, 0.0, batch_first=True)

    def forward(self, input_ids, decoder_input_ids):
        mask = nn.Transformer.generate_square_subsequent_mask(decoder_input_ids.shape[1])
        mask = mask.to(self.head.weight.dtype)
        y = self.transformer(self.embedding(input_ids), self.embedding(decoder_input_ids), tgt_mask=mask)
        return self.head(y).transpose(1, 2)


def block(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU())


class UNet(nn.Module):
    def __init__(self, mode: str):
        super().__init__()
        self.mode = mode
        self.down, self.inner, self.up = block(3, 8), block(8, 16), block(24, 8)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x):
        x = self.down(x)
        y = self.inner(F.max_pool2d(x, 2))
        y = F.interpolate(y, scale_factor=2, mode=self.mode)
        return self.head(self.up(torch.cat([x, y], 1)))


class Contrastive(nn.Module):
    """Two towers whose similarities a learned temperature divides."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(12, 8), nn.Linear(10, 8)
        self.temperature = nn.Parameter(torch.tensor(0.7))

    def forward(self, x, other):
        a, b = F.normalize(self.left(x), dim=-1), F.normalize(self.right(other), dim=-1)
        return a @ b.T * self.temperature.exp()


class Quantised(nn.Module):
    """A VQ-VAE: the nearest code takes the place of each vector, and gradients pass straight through."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(12, 4), nn.Linear(4, 12)
        self.codes = nn.Parameter(torch.randn(6, 4))

    def forward(self, x):
        z = self.encoder(x)
        nearest = self.codes[torch.cdist(z, self.codes).argmin(-1)]
        q = z + (nearest - z).detach()
        return self.decoder(q) + (nearest - z.detach()).pow(2).mean() + 0.25 * (z - nearest.detach()).pow(2).mean()


class Student(nn.Module):
    """It learns from itself, through a part without gradients."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(12, 16), nn.GELU()), nn.Linear(16, 5)

    def forward(self, x):
        with torch.no_grad():
            target = torch.softmax(self.head(self.body(x)), -1)
        return self.head(self.body(x)) - target


class Fourier(nn.Module):
    """Coordinates by fixed frequencies, which are a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", torch.randn(2, 16))
        self.net = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, x):
        x = 6.28 * x @ self.frequencies
        return self.net(torch.cat([x.sin(), x.cos()], -1))


class WaveNet(nn.Module):
    def __init__(self):
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.first = nn.Conv1d(2, 8, 1)
        self.layers = nn.ModuleList(norm(nn.Conv1d(8, 16, 2, dilation=2**i)) for i in range(3))
        self.head = nn.Conv1d(8, 5, 1)

    def forward(self, x):
        x = self.first(x.reshape(x.shape[0], 2, -1))
        for i, layer in enumerate(self.layers):
            a, b = layer(F.pad(x, (2**i, 0))).chunk(2, 1)
            x = x + a.tanh() * b.sigmoid()
        return self.head(x)


class Mixture(nn.Module):
    """Experts of which two are chosen for each row."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(12, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5)) for _ in range(4))

    def forward(self, x):
        best, which = self.gate(x).topk(2, -1)
        every = torch.stack([expert(x) for expert in self.experts], 1)
        chosen = every.gather(1, which[..., None].expand(-1, -1, every.shape[-1]))
        return (best.softmax(-1)[..., None] * chosen).sum(1)


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.points = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 1))
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.points(x.reshape(x.shape[0], 3, -1)).amax(-1))


class Stack(nn.Sequential):
    """One whose input has a name."""

    def forward(self, x):
        return super().forward(x)


def generator() -> nn.Module:
    def up(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.ConvTranspose2d(inputs, outputs, 4, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    return Stack(nn.Unflatten(1, (12, 1, 1)), *up(12, 16), *up(16, 8), nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh())


def discriminator() -> nn.Module:
    norm = nn.utils.parametrizations.spectral_norm
    return Stack(
        norm(nn.Conv2d(3, 8, 4, 2, 1)), nn.LeakyReLU(0.2), norm(nn.Conv2d(8, 16, 4, 2, 1)), nn.LeakyReLU(0.2),
        nn.Flatten(), norm(nn.Linear(256, 2)),
    )  # fmt: skip


NETWORKS: dict[str, Network] = {
    "tv_resnet18": Network(vision("resnet18"), images(32), double=True),
    "tv_mobilenet_v3_small": Network(vision("mobilenet_v3_small", dropout=0.0), images(32), double=True),
    "tv_squeezenet1_1": Network(vision("squeezenet1_1", dropout=0.0), images(32)),
    "tv_shufflenet_v2_x0_5": Network(vision("shufflenet_v2_x0_5"), images(64), lr=0.01, double=True),
    "tv_regnet_y_400mf": Network(vision("regnet_y_400mf"), images(64), lr=0.01, double=True),
    "tv_densenet": Network(
        lambda: torchvision.models.DenseNet(8, (2, 2, 2), 16, bn_size=2, num_classes=5), images(32), double=True
    ),
    "tv_vit": Network(lambda: torchvision.models.VisionTransformer(16, 4, 2, 2, 32, 64, num_classes=5), images(16)),
    "tv_swin": Network(
        lambda: torchvision.models.SwinTransformer(
            [4, 4], 16, [1, 1], [2, 4], [4, 4], num_classes=5, stochastic_depth_prob=0.0
        ),
        images(32),
    ),
    "tv_convnext": Network(
        lambda: torchvision.models.ConvNeXt(
            [
                torchvision.models.convnext.CNBlockConfig(16, 32, 1),
                torchvision.models.convnext.CNBlockConfig(32, None, 1),
            ],
            stochastic_depth_prob=0.0,
            num_classes=5,
        ),
        images(32),
    ),  # fmt: skip
    "tv_maxvit": Network(
        lambda: torchvision.models.MaxVit((32, 32), 16, 4, [16], [1], 8, 0.0, num_classes=5), images(32), double=True
    ),
    "timm_beit": Network(
        timm_model("beit_base_patch16_224", img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=2), images(16)
    ),
    "timm_cait": Network(
        timm_model("cait_xxs24_224", img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=2), images(16)
    ),
    "timm_eva02": Network(
        timm_model("eva02_tiny_patch14_224", img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=2), images(16)
    ),
    "timm_xcit": Network(
        timm_model("xcit_nano_12_p16_224", img_size=32, embed_dim=32, depth=2, num_heads=2), images(32), double=True
    ),
    "timm_convit": Network(
        timm_model("convit_tiny", img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=2), images(16)
    ),
    "timm_mixer": Network(
        lambda: timm.models.MlpMixer(num_classes=5, img_size=16, patch_size=4, embed_dim=32, num_blocks=2), images(16)
    ),
    "timm_poolformer": Network(
        lambda: timm.models.metaformer.MetaFormer(num_classes=5, depths=(1, 1, 1, 1), dims=(8, 16, 16, 16)), images(32)
    ),
    "timm_ghostnet": Network(timm_model("ghostnet_050", drop_rate=0.0), images(64), lr=0.01, double=True),
    "timm_repvgg_a0": Network(timm_model("repvgg_a0"), images(32), double=True),
    "timm_sequencer2d": Network(
        timm_model(
            "sequencer2d_s",
            img_size=28,
            layers=(1, 1),
            patch_sizes=(7, 2),
            embed_dims=(16, 32),
            hidden_sizes=(4, 8),
            mlp_ratios=(2, 2),
        ),
        images(28),
    ),
    "timm_hiera": Network(
        timm_model("hiera_tiny_224", img_size=(64, 64), embed_dim=16, num_heads=1, stages=(1, 1, 1, 1)), images(64)
    ),
    "timm_pvt_v2_b0": Network(
        timm_model("pvt_v2_b0", depths=(1, 1, 1, 1), embed_dims=(8, 16, 32, 32), num_heads=(1, 2, 2, 2)), images(64)
    ),
    "hf_llama": Network(causal("Llama", **LLAMA), texts()),
    "hf_mistral": Network(causal("Mistral", **LLAMA), texts()),
    "hf_qwen2": Network(causal("Qwen2", **LLAMA), texts()),
    "hf_qwen3": Network(causal("Qwen3", **LLAMA, head_dim=8), texts()),
    "hf_gemma2": Network(causal("Gemma2", **GEMMA), texts()),
    "hf_phi3": Network(causal("Phi3", **LLAMA), texts()),
    "hf_falcon": Network(
        causal(
            "Falcon",
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            use_cache=False,
            hidden_dropout=0.0,
            attention_dropout=0.0,
        ),
        texts(),
    ),
    "hf_gpt2": Network(
        lambda: Text(
            hf.GPT2LMHeadModel(
                hf.GPT2Config(
                    vocab_size=VOCABULARY,
                    n_positions=32,
                    n_embd=32,
                    n_layer=2,
                    n_head=2,
                    resid_pdrop=0.0,
                    embd_pdrop=0.0,
                    attn_pdrop=0.0,
                    use_cache=False,
                )
            )
        ),
        texts(),
    ),
    "hf_opt": Network(
        causal(
            "OPT",
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            ffn_dim=64,
            max_position_embeddings=32,
            word_embed_proj_dim=32,
            dropout=0.0,
            use_cache=False,
        ),
        texts(),
    ),
    "hf_bloom": Network(
        causal(
            "Bloom",
            vocab_size=VOCABULARY,
            hidden_size=32,
            n_layer=2,
            n_head=2,
            use_cache=False,
            hidden_dropout=0.0,
            attention_dropout=0.0,
        ),
        texts(),
    ),
    "hf_mamba": Network(
        causal("Mamba", vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, state_size=4, use_cache=False),
        texts(),
    ),
    "hf_bert": Network(masked_lm("Bert"), texts()),
    "hf_bert_mask": Network(
        lambda: Masked(hf.BertForSequenceClassification(hf.BertConfig(**BERT))),
        lambda rows: texts()(rows) | {"attention_mask": (torch.arange(8) < torch.randint(4, 9, (rows, 1))).long()},
    ),
    "hf_roberta": Network(masked_lm("Roberta"), texts()),
    "hf_distilbert": Network(
        lambda: Text(
            hf.DistilBertForMaskedLM(
                hf.DistilBertConfig(
                    vocab_size=VOCABULARY,
                    dim=32,
                    n_layers=2,
                    n_heads=2,
                    hidden_dim=64,
                    max_position_embeddings=32,
                    dropout=0.0,
                    attention_dropout=0.0,
                )
            )
        ),
        texts(),
    ),
    "hf_electra": Network(masked_lm("Electra", embedding_size=16), texts()),
    "hf_albert": Network(masked_lm("Albert", embedding_size=16, classifier_dropout_prob=0.0), texts()),
    "hf_deberta_v2": Network(
        masked_lm("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"], pooler_dropout=0.0), texts()
    ),
    "hf_modernbert": Network(
        lambda: Text(
            hf.ModernBertForMaskedLM(
                hf.ModernBertConfig(
                    vocab_size=VOCABULARY,
                    hidden_size=32,
                    num_hidden_layers=2,
                    num_attention_heads=2,
                    intermediate_size=64,
                    max_position_embeddings=32,
                    pad_token_id=0,
                    bos_token_id=1,
                    eos_token_id=2,
                    cls_token_id=1,
                    sep_token_id=2,
                )
            )
        ),
        texts(),
    ),
    "hf_fnet": Network(
        lambda: Text(
            hf.FNetForMaskedLM(
                hf.FNetConfig(
                    vocab_size=VOCABULARY,
                    hidden_size=32,
                    num_hidden_layers=2,
                    intermediate_size=64,
                    max_position_embeddings=32,
                    hidden_dropout_prob=0.0,
                    pad_token_id=0,
                )
            )
        ),
        texts(),
    ),
    "hf_t5": Network(t5, texts(decoder_input_ids=6)),
    "hf_bart": Network(bart, texts(decoder_input_ids=6)),
    "hf_whisper": Network(
        whisper,
        lambda rows: {"x": torch.randn(rows, 8, 32), "decoder_input_ids": torch.randint(3, VOCABULARY, (rows, 6))},
    ),
    "hf_wav2vec2": Network(wav2vec2, vectors(160)),
    "hf_vit": Network(hf_vit, images(16)),
    "hf_clip": Network(clip, lambda rows: texts()(rows) | images(16)(rows)),
    "hf_segformer": Network(segformer, images(32), double=True),
    "hf_swin2sr": Network(swin2sr, images(16), "mse"),
    "diffusers_unet2d": Network(unet2d, noisy(16), "mse"),
    "diffusers_dit": Network(dit, noisy(8), "mse"),
    "diffusers_autoencoder_kl": Network(autoencoder, images(16), "mse"),
    "tied_gru": Network(Tied, texts()),
    "bilstm_attention": Network(Attentive, texts()),
    "nn_transformer": Network(Translator, texts(decoder_input_ids=6)),
    "unet_nearest": Network(lambda: UNet("nearest"), images(16)),
    "unet_bilinear": Network(lambda: UNet("bilinear"), images(16)),
    "contrastive_temperature": Network(
        Contrastive, lambda rows: {"x": torch.randn(rows, 12), "other": torch.randn(rows, 10)}
    ),
    "vqvae_detach": Network(Quantised, vectors(12), "mse"),
    "student_no_grad": Network(Student, vectors(12)),
    "fourier_features": Network(Fourier, vectors(2), "mse"),
    "wavenet_weight_norm": Network(WaveNet, vectors(24)),
    "mixture_topk": Network(Mixture, vectors(12)),
    "pointnet": Network(PointNet, vectors(48)),
    "dcgan_generator": Network(generator, vectors(12), "mse"),
    "spectral_norm": Network(discriminator, images(16)),
}
