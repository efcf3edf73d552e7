--- Figures that users have reported for models on real Macs (M4 Max unless stated otherwise). A plan shows them for comparison.
-- Nothing is computed from them.
-- Needs nothing. A row: match = fields of the configuration that must be equal; reported, why (the plan's bytes come from shapes).

return {
  {
    match = { architecture = "phi3", d_model = 3072, n_layer = 32 }, name = "Phi-4-mini",
    reported = "INT8: 3 of 32 layers a package (74 MB a layer, 223 MB together), head 4 x 50,016 rows, 17 tokens/s",
    why = "by shape a layer has 100.7 MB of int8 weights; 74 MB is a size after compilation. Three layers are 302 MB by shape, above "
      .. "the size limit; two are 201.5 MB, just above the 200 MB planned for (--target 202 takes them)",
  },
  {
    match = { architecture = "hunyuan_v1_dense", d_model = 2048, n_layer = 32 }, name = "Hy-MT 1.8B",
    reported = "INT8: head 2 x 60,409 rows, 34 tokens/s; the number of layers a package is not reported",
    why = "the head has the same slices; a layer has 48.2 MB by shape, so that four fit in 200 MB",
  },
  {
    match = { architecture = "zaya", d_model = 2048, n_layer = 40 }, name = "ZAYA1-8B",
    reported = "INT8: one layer with all 16 experts a package (193-202 MB), 9 tokens/s",
    why = "by shape a layer has 207.9 MB: 201.3 MB of experts, the rest attention (its convolutions over tokens in fp16) and router. "
      .. "It is above "
      .. "the 200 MB planned for and within the size limit, so it stays whole as reported",
  },
  {
    match = { architecture = "openai_privacy_filter", d_model = 640, n_layer = 8 }, name = "privacy filter",
    reported = "a package an expert: 1,024 for 8 layers of 128 experts, 24.6 sentences/s",
    why = "by shape a layer with all its experts has 159.2 MB in int8, within the size limit: one package a layer does. "
      .. "--experts each gives "
      .. "the reported packages; its 1,024 calls and more a text cost more than they compute",
  },
  {
    match = { architecture = "qwen2", d_model = 896, n_layer = 24 }, name = "Qwen2.5-0.5B",
    reported = "about 10 MB a layer, so all of it or large groups in one package; 82 tokens/s decode on M4 Pro, 160 by another engine "
      .. "on M4 Max",
    why = "by shape a layer has 14.9 MB in int8, and 24 layers 358 MB, above the size limit: two groups. 10 MB is a size after compilation "
      .. "or with fewer bits",
  },
  {
    match = { architecture = "lfm2_moe", d_model = 2048, n_layer = 24 }, name = "LFM2.5-8B-A1B",
    reported = "nothing", why = "no report of this model in packages was found",
  },
}
